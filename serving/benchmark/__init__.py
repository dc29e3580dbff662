"""What Forecache costs and what it saves, measured: the commands under `forecache bench`.

Nothing outside this package imports it, but for the command line, inside its commands.
"""
