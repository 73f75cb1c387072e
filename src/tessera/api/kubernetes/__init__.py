"""Formats of Kubernetes: pods, workloads, nodes, quotas, leases, events, and the kubelet's checkpoint."""
