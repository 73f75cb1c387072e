"""How many replicas does a model server need?

`hpa` is the algorithm of Kubernetes' HorizontalPodAutoscaler, `autoscaler` Tessera's own policy, which drives it.
"""
