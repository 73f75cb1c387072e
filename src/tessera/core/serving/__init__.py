"""How does a model server run: on which part of a GPU, started how, with how many replicas?

`modelserver` is the spec, `render` the resulting Kubernetes objects, `engineflags` the options of the
engines, `sizing` the part of a GPU that fits a model. `queuetime` is the wait of requests at a pod, `observed` the
sum of a server's pods, `autoscaler` Tessera's own policy, `decisions` its answer while the input is invalid,
`scaletozero` the step between zero and one replica, and `hpa` the algorithm of Kubernetes' HorizontalPodAutoscaler,
which it drives.
"""
