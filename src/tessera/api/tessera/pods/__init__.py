"""What Tessera writes on pods, whether that was signed, and pods as they are read by it."""
