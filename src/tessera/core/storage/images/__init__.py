"""Which node pulls which image next, which nodes have a pod's images, and what images share."""
