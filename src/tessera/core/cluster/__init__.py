"""What is there, who uses what, and who may allocate it? The immutable picture that decisions start from."""
