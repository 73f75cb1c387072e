"""A Job until it has ended: its progress, its log and GPU usage, the address of its notebook."""
