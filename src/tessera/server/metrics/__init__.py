"""The metrics APIs behind kube-apiserver, and what is measured and decided for them.

`access` is who may ask, `app` the HTTP routes, `sources` what is served, `servers` the model servers as the cluster has
them, `looks` measures and decides every fifteen seconds, `rules` are a Prometheus adapter's, and `run` is the process.
"""
