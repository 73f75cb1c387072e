"""The server: kube-scheduler's extender, in any number of replicas."""
