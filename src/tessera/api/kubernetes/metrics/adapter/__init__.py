"""Configurations of prometheus-adapter, read unchanged: which series of a Prometheus are metrics of which objects.

`rules` reads a file, `discovery` says what its rules serve of the series that there are, `queries` is what Prometheus
is asked for a metric, and `values` what is made of its answer. `templates` are Go's, `patterns` RE2's.

Source: kubernetes-sigs/prometheus-adapter 0.12.0, its pages on configuration and external metrics, and `pkg/naming`.
"""
