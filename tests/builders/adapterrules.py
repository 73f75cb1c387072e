"""Configurations of prometheus-adapter that others published, and what tests make of rules.

Source: kubernetes-sigs/prometheus-adapter 0.12.0 `docs/sample-config.yaml`, `docs/config-walkthrough.md` and
`docs/externalmetrics.md`; Triton's Helm chart `deploy/k8s-onprem/values.yaml`; production-stack
`observability/prom-adapter.yaml`.
"""

from pathlib import Path
from typing import Any

from tessera.api import documents
from tessera.api.kubernetes.metrics.adapter.rules import AdapterRule, read_adapter_rules

__all__ = ["PUBLISHED", "SAMPLE", "corrected", "rule"]

SAMPLE = Path(__file__).parents[1] / "data/prometheus-adapter/sample-config.yaml"


def corrected() -> str:
    """Return the published sample with its three wrong quotes put right."""
    begun = SAMPLE.read_text().replace('metricsQuery: "', "metricsQuery: '")
    return begun.replace('by (<<.GroupBy>>)"', "by (<<.GroupBy>>)'")


PUBLISHED = {
    "the walk-through": """
rules:
- seriesQuery: 'http_requests_total{kubernetes_namespace!="",kubernetes_pod_name!=""}'
  resources:
    overrides:
      kubernetes_namespace: {resource: "namespace"}
      kubernetes_pod_name: {resource: "pod"}
  name:
    matches: "^(.*)_total"
    as: "${1}_per_second"
  metricsQuery: 'sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)'
""",
    "external metrics": """
externalRules:
- seriesQuery: '{__name__="queue_consumer_lag",name!=""}'
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (name)
  resources:
    overrides: { namespace: {resource: "namespace"} }
""",
    "Triton's chart": """
rules:
- seriesQuery: nv_inference_queue_duration_us{namespace="default",pod!=""}
  resources:
    overrides:
      namespace:
        resource: "namespace"
      pod:
        resource: "pod"
  name:
    matches: "nv_inference_queue_duration_us"
    as: "avg_time_queue_us"
  metricsQuery: 'avg(delta(nv_inference_queue_duration_us{<<.LabelMatchers>>}[30s])/
    (1+delta(nv_inference_request_success{<<.LabelMatchers>>}[30s]))) by (<<.GroupBy>>)'
""",
    "production-stack": """
rules:
- seriesQuery: '{__name__=~"^vllm:num_requests_waiting$"}'
  resources:
    overrides:
      namespace:
        resource: "namespace"
  name:
    matches: ""
    as: "vllm_num_requests_waiting"
  metricsQuery: sum by(namespace) (vllm:num_requests_waiting)
""",
}


def rule(*, external: bool = False, **given: Any) -> AdapterRule:
    """Return a rule about pods whose query is its matchers, other fields as given."""
    labels = {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}}
    fields = {"seriesQuery": "up", "resources": labels, "metricsQuery": "<<.LabelMatchers>>", **given}
    text = documents.write({"externalRules" if external else "rules": [fields]})
    return read_adapter_rules("rules.yaml", text.encode()).rules[0]
