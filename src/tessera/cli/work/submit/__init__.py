"""From options to a Job in the cluster: what is requested, what is sent with it, where it would run."""
