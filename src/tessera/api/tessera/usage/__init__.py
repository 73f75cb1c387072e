"""GPU usage as agents report it, and as Prometheus recorded it in the same form."""
