"""The server: kube-scheduler's extender, admission, metrics and the page, in any number of replicas."""
