"""Who may do what, where several processes act: allocators, claims, keys and leadership as state machines."""
