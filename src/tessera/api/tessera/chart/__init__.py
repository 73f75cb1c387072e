"""The Helm chart's values: their records, their description, and why one is rejected."""
