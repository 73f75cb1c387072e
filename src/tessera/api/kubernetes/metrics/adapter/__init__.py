"""Configurations of prometheus-adapter, read unchanged: which series of a Prometheus are metrics of which objects.

`rules` reads a file, `discovery` applies its rules to the existing series, `queries` builds PromQL for
a metric, and `values` converts its result. `templates` are those of Go.

Source: kubernetes-sigs/prometheus-adapter 0.12.0, its pages on configuration and external metrics, and `pkg/naming`.
"""
