"""Wire records and their conversion to core values: Kubernetes objects, fleets, and the formats of other tools. Text in, values out."""
