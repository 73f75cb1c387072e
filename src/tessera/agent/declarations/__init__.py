"""What files, labels and the GPUNode declare for the GPUs of this node."""
