"""GPU usage as agents report it."""
