"""Formats of Kubernetes: pods, workloads, jobs, nodes, quotas, leases, metrics, events, the kubelet's checkpoint."""
