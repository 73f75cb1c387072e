"""Formats of Prometheus: metrics, rules and answers."""
