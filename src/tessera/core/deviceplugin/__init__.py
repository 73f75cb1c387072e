"""What is the kubelet given? Which devices a container prefers, is allocated and may start with, and how."""
