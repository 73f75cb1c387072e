"""How does a model server run: on which part of a GPU, started how, with how many replicas?

`modelserver` is the spec, `engineflags` the options of the engines, `annotations` what is written on the objects, and
`sizing` the part of a GPU that fits a model, by `modelmemory`. `metrics` is how busy a server is, `autoscaling` how
many replicas it should have, `render` the Kubernetes objects of a spec, and `serverstatus` the status of the kind.
"""
