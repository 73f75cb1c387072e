"""The metrics APIs behind kube-apiserver, and what is measured and decided for them.

`access` is who may ask, `app` the HTTP routes, `sources` what is served, `samples` what pods counted, `fronts` what
waits before servers without a replica, `modelservers` measures and decides every fifteen seconds, `places` counts room
for more replicas, `ruled` serves metrics by rules of prometheus-adapter, `published` is what Prometheus scrapes, and
`run` is the process.
"""
