"""Rules for the waiting time of model servers: every series they ask for is one of an engine's.

That Prometheus computes the right values of them, promtool tests in tests/test_monitoring.py, of the generated files.
"""

import json
import re

from generate.queuerules import adapter_rules, prometheus_rules
from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS


def test_what_is_recorded_is_made_of_the_series_of_all_engines() -> None:
    text = json.dumps(prometheus_rules())
    known = frozenset().union(*(each.series for each in ENGINE_METRICS))
    requested = set(re.findall(r"\b(?:vllm:|nv_)\w+", text))
    assert requested <= known
    assert {
        name for each in ENGINE_METRICS for name in (each.queued, each.dequeued, each.waiting, *each.served[:1])
    } - requested == {
        "vllm:request_inference_time_seconds_sum"  # vLLM says how many it serves
    }


def test_each_rule_of_the_adapter_has_a_name_of_its_own() -> None:
    found = adapter_rules()
    assert isinstance(found, dict)
    for key, resources in (("rules", {"namespace", "pod"}), ("externalRules", {"namespace"})):
        rules = json.loads(json.dumps(found[key]))
        names = [each["name"]["as"] for each in rules]
        assert len(set(names)) == len(names) > 0
        assert all(each["resources"]["overrides"].keys() == resources for each in rules)
        assert all("<<.LabelMatchers>>" in each["metricsQuery"] for each in rules)
