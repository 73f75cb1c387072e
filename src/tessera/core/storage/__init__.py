"""What is on a node before a pod starts: its local disks, prepared, models and images."""
