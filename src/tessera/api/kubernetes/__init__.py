"""What Kubernetes' own objects say: pods, workloads, nodes, quotas, leases, events, and the kubelet's checkpoint."""
