"""Local disks made ready on the node, and offered as volumes."""
