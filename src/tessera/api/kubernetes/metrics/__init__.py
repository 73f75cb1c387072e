"""The APIs that metrics are read by: `custom.metrics.k8s.io` and `external.metrics.k8s.io`.

`paths` is what is asked, `answers` what is answered; `adapter` reads rules of prometheus-adapter.
"""
