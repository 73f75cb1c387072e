"""The controller: one for the cluster, by a Lease. Policies to nodes, devices for pods that wait, status and events."""
