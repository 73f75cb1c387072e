"""Which GPUs exist, who uses them, and who may allocate them? The immutable snapshot that decisions start from."""
