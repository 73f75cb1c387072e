"""Names of metrics have one home. Alert rules: Prometheus reads them, each fires, and somebody knows what to do."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tessera.clients.kube import MemoryKube
from tessera.clients.prometheus import MemoryMetrics
from tessera.core.serving.metricnames import SERVING_METRICS
from tessera.core.usage.nodemetrics import NODE_METRICS
from tessera.core.usage.processmetrics import PROCESS_METRICS
from tessera.log import logger
from tessera.server.metrics.looks import Looks
from tessera.server.metrics.samples import ScrapedSamples

ROOT = Path(__file__).parents[1]
RULES = (ROOT / "deploy/monitoring/rules.yaml", ROOT / "deploy/monitoring/model-servers.yaml")
CASES = (ROOT / "tests/data/monitoring/rules_test.yaml", ROOT / "tests/data/monitoring/model-servers_test.yaml")
ADAPTER = yaml.safe_load((ROOT / "deploy/monitoring/prometheus-adapter.yaml").read_text())
EACH = [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
ALERTS = [each for each in EACH if "alert" in each]
RECORDED = {each["record"] for each in EACH if "record" in each}
HOMES = {"core/serving/metricnames.py", "core/usage/nodemetrics.py", "core/usage/processmetrics.py"}
"""Where names of metrics are spelled; all else imports them."""
EXPOSED = {each.name for each in (*NODE_METRICS, *PROCESS_METRICS)}
NAME = re.compile(r"\b(tessera_[a-z_]+[a-z]|DCGM_FI_[A-Z_]+[A-Z])\b")
"""A whole name, not what several begin with."""


def test_each_name_of_a_metric_is_spelled_in_one_place_of_the_program() -> None:
    program = ROOT / "src/tessera"
    spelled: dict[str, list[str]] = {}
    for path in program.glob("**/*.py"):
        where = path.relative_to(program).as_posix()
        for name in re.findall(rf"[\"'(]{NAME.pattern}[\"'{{)\[]", path.read_text()):
            spelled.setdefault(name, []).append(where)
    assert spelled.keys() == {*EXPOSED, *SERVING_METRICS} - {"avg_time_queue_us"}
    assert {name: places for name, places in spelled.items() if len(places) > 1 or places[0] not in HOMES} == {}


def test_pages_and_help_name_metrics_that_there_are() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    known = {*EXPOSED, *SERVING_METRICS}
    found = {name.removesuffix("_bucket"): path for path in pages for name in NAME.findall(path.read_text())}
    assert {name: str(path) for name, path in found.items() if name not in known} == {}
    assert len(found) > 50


def test_each_alert_says_what_to_do_in_a_section_of_its_name() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs/troubleshoot.md").read_text(), re.MULTILINE)
    assert sections == [each["alert"] for each in ALERTS]
    for each in ALERTS:
        assert each["annotations"]["runbook"] == f"docs/troubleshoot.md#{each['alert'].lower()}"


def test_rules_ask_for_metrics_that_there_are() -> None:
    for each in ALERTS:
        requested = set(re.findall(r"(?<!:)\b(?:tessera|DCGM_FI)_\w+", each["expr"]))
        recorded = {name for name in RECORDED if name in each["expr"]}
        assert {name.removesuffix("_bucket") for name in requested} <= EXPOSED, each["alert"]
        assert requested | recorded


def test_each_alert_has_a_case() -> None:
    tested = [each["name"] for path in CASES for each in yaml.safe_load(path.read_text())["tests"]]
    assert tested == [each["alert"] for each in ALERTS]


def test_prometheus_adapter_serves_the_metrics_of_tessera_metrics_from_what_is_recorded() -> None:
    """All but the replicas, which `tessera metrics` alone decides."""
    looks = Looks(MemoryKube(), ScrapedSamples(MemoryMetrics()), logger())
    assert {("pods", each["name"]["as"]) for each in ADAPTER["rules"]} == looks.custom()
    assert {each["name"]["as"] for each in ADAPTER["externalRules"]} == looks.external() - {"tessera_replicas"}
    requested = {each["seriesQuery"].partition("{")[0] for each in (*ADAPTER["rules"], *ADAPTER["externalRules"])}
    assert requested == RECORDED


def test_each_alert_fires_for_what_it_is_about_alone(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, by which Prometheus checks rules, is not on PATH")
    for path in (*RULES, *CASES):
        shutil.copy(path, tmp_path)
    for command in (["check", "rules", *(each.name for each in RULES)], ["test", "rules", *(e.name for e in CASES)]):
        result = subprocess.run([promtool, *command], cwd=tmp_path, check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
