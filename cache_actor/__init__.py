"""What to keep: workflows, their messages and (later) policies and plans. Pure code; knows nothing of SGLang."""
