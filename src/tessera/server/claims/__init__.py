"""Claims: shares reserved for pods that are about to be bound, so that no other server assigns them."""
