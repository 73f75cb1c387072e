"""The controller: writes the policy of each node, creates devices for pending pods, reports status and events."""
