"""Who comes next: forecasts of the agents a workflow will call. Pure code but for its Serve deployment."""
