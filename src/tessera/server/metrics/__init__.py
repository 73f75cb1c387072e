"""The metrics APIs behind kube-apiserver, and the measurements and decisions that they serve.

`access` authorizes requests, `app` has the HTTP routes and `sources` what they serve: `servermetrics` of model servers,
`adaptermetrics` by rules of prometheus-adapter. `samples` reads the pods' counters, `requestqueues` the requests queued
for servers without a replica, `replicaroom` counts room for more replicas, `autoscaling` measures and decides every
15 s, `scalingevents` writes the events of it. `published` has the Prometheus metrics, and `run` is the process.
"""
