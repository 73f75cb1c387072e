"""Local disks prepared on the node, and offered as local volumes."""
