"""Protocols between processes, as state machines: allocators, claims, keys and leader election."""
