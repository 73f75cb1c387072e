"""GPU usage as agents report it, and as commands print it."""
