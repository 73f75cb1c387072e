"""What is the kubelet given? Which devices a container prefers, gets and may start with, and how."""
