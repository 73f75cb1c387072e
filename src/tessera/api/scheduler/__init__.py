"""kube-scheduler's configuration, its extender protocol, and the admission of its pods."""
