"""How many replicas should a model server have?

`decisions` decides, by the `serverfacts` of the cluster and the load, and keeps an answer while the input is invalid.
It asks the policy `autoscaler`, which counts replicas for the demand of the `forecast` and the measured `capacity`.
`places` are counted before a server grows, and `scaletozero` is the step between zero and one replica.
`recordedpass` is the input of a decision in the log.
`hpa` is the algorithm of Kubernetes' HorizontalPodAutoscaler, which carries the decision out, and `hpabehavior` how
fast.
"""
