"""How busy is a model server? From the counters of its pods to its load, and the same as expressions for Prometheus.

`enginemetrics` names the series of the engines, `counters` is one sample of them, `queuetime` the wait between two,
`observed` the sum over the pods, which is the `load`. `metricnames` are the names under which others read it, and
`promql` the expressions that give the same values.
"""
