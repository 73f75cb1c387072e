"""What Tessera writes beside models on a disk, and reports of a node's disks."""
