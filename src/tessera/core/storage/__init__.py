"""What is on a node before a pod starts: images."""
