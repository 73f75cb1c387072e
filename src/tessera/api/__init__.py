"""Wire records and their conversion to core values: Kubernetes objects, fleets, formats of other tools. Pure."""
