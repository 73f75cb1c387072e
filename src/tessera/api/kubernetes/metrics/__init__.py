"""The metrics APIs: `custom.metrics.k8s.io` and `external.metrics.k8s.io`.

`paths` are requests, `answers` responses; `adapter` reads rules of prometheus-adapter.
"""
