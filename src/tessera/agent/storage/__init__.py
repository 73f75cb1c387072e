"""What the agent does for what is on a node before a pod starts: disks, images."""
