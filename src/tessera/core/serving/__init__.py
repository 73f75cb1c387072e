"""How is a model server run: on which part of a GPU, started how, with how many replicas?

`modelserver` is what a user asks, `render` the Kubernetes objects that follow, `engineflags` the options of the
engines, `sizing` which part of a GPU holds a model. `queuetime` is how long requests wait at a pod, `observed` a
server's pods added up, `autoscaler` Tessera's own policy, `decisions` what it says while its input is bad,
`scaletozero` the step between none and one replica, and `hpa` the algorithm of Kubernetes' HorizontalPodAutoscaler,
which it drives.
"""
