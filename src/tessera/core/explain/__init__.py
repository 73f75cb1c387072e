"""Why? A workload, a pod, and the GPUs of a live cluster, explained to people."""
