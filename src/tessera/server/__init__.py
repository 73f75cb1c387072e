"""The server: kube-scheduler's extender, any number of replicas at once."""
