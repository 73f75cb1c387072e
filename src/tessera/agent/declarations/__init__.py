"""The declared sharing of this node's GPUs: by files, labels and the GPUNode."""
