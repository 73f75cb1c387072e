"""`tessera top` and `tessera recommend`: GPU usage, and recommended sizes."""
