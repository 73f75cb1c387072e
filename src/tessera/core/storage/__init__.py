"""What is on a node before a pod starts: its local disks, made ready, and images."""
