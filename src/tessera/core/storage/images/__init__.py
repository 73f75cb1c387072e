"""Which node pulls which image next, which nodes hold a pod's images, and what images share."""
