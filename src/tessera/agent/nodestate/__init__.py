"""This node in the cluster: its Node and GPUNode objects, the health of its GPUs, their memory in use."""
