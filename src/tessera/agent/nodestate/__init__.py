"""This node as the cluster sees it: its Node and GPUNode objects, the health of its GPUs, their memory in use."""
