"""What Prometheus reads and answers."""
