"""`tessera top` and `tessera recommend`: who uses the GPUs, and what would be enough."""
