"""Wire records and their conversion to core values: Kubernetes objects, fleets, other tools' formats. Text in, values out."""
