"""Storage on a node, ready before a pod starts: disks, models, images."""
