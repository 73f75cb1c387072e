"""The metrics APIs behind kube-apiserver, and the measurements and decisions that they serve.

`access` authorizes requests, `app` has the HTTP routes, `sources` the metrics, `samples` the pods' counters,
`requestqueues` requests queued for servers without a replica, `modelservers` measures and decides every 15 s,
`replicaroom` counts room for more replicas, `adaptermetrics` serves metrics by rules of prometheus-adapter,
`published` the Prometheus metrics, and `run` is the process.
"""
