"""How kube-scheduler is configured, which pods come to it, and what it asks its extender."""
