"""What does the kubelet get? Which devices a container prefers, is allocated and may start with, and how."""
