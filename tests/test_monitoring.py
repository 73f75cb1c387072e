"""Names of metrics have one home. Alert rules: Prometheus reads them, each fires, and somebody knows what to do."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from builders.exposed import node_metrics, process_metrics
from tessera.clients.kube import MemoryKube
from tessera.clients.prometheus import MemoryMetrics
from tessera.core.serving.metrics.metricnames import SERVING_METRICS
from tessera.core.serving.metrics.promql import queue_time_query
from tessera.core.usage.nodemetrics import NODE_METRICS
from tessera.core.usage.ownmetrics import OWN_METRICS
from tessera.log import logger
from tessera.server.metrics.autoscaling import ModelServerAutoscaler
from tessera.server.metrics.samples import ScrapedSamples
from tessera.server.metrics.servermetrics import ModelServerMetrics

ROOT = Path(__file__).parents[1]
RULES = (ROOT / "deploy/chart/files/monitoring/rules.yaml", ROOT / "deploy/chart/files/monitoring/model-servers.yaml")
CASES = (ROOT / "tests/data/monitoring/rules_test.yaml", ROOT / "tests/data/monitoring/model-servers_test.yaml")
SITUATIONS = ROOT / "tests/data/monitoring/situations_test.yaml"
ADAPTER = yaml.safe_load((ROOT / "deploy/chart/files/monitoring/prometheus-adapter.yaml").read_text())
EACH = [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
ALERTS = [each for each in EACH if "alert" in each]
RECORDED = {each["record"] for each in EACH if "record" in each}
HOMES = {"core/serving/metrics/metricnames.py", "core/usage/nodemetrics.py", "core/usage/ownmetrics.py"}
"""Where names of metrics are spelled; all else imports them."""
COMPONENTS = {
    name
    for path in ROOT.glob("deploy/chart/templates/*.yaml")
    for name in re.findall(r"app.kubernetes.io/component: (\w+)", path.read_text())
}
"""Of pods, by which the PodMonitor labels their targets."""
EXPOSED = {each.name for each in (*NODE_METRICS, *OWN_METRICS)}
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


def test_promtool_objects_to_no_metric_but_to_what_is_dcgm_exporter_s() -> None:
    """Its names and labels are kept where the meaning is equal, so that its dashboards work."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, by which Prometheus checks metrics, is not on PATH")
    exposed = node_metrics() + process_metrics()
    assert {each.name for each in OWN_METRICS} <= set(re.findall(r"^# TYPE (\S+)", exposed.decode(), re.MULTILINE))
    result = subprocess.run([promtool, "check", "metrics"], input=exposed, check=False, capture_output=True)
    objections = set(result.stderr.decode().splitlines())
    labels = {
        each for each in objections if each.endswith("label names should be written in 'snake_case' not 'camelCase'")
    }
    assert labels, "modelName is a label of DCGM exporter"
    assert {each.partition(" ")[0] for each in labels}.isdisjoint(each.name for each in OWN_METRICS)
    assert {each.partition(" ")[0] for each in objections - labels} == {
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    }, "counters without `_total`"


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
        assert "runbook_url" not in each["annotations"], "a relative address leads nowhere"
        assert each["annotations"]["runbook"] == f"docs/troubleshoot.md#{each['alert'].lower()}"


def test_the_alert_about_loops_names_each_loop() -> None:
    program = "\n".join(path.read_text() for path in (ROOT / "src/tessera").glob("**/*.py"))
    spelled = (
        r'\bturned(?:\(|, )f?"([a-z_-]+)',
        r'_forever\("([a-z_-]+)',
        r'Following\(.*"([a-z_-]+)"\)',
        r'_LOOP: Final = "(\w+)',
    )
    loops = {name.rstrip("-") for each in spelled for name in re.findall(each, program)}
    assert len(loops) > 18
    runbook = (ROOT / "docs/troubleshoot.md").read_text().partition("## TesseraLoopStuck")[2].partition("## Tessera")[0]
    assert {name for name in loops if not re.search(f"`{name}[`-]", runbook)} == set()


def test_rules_ask_for_metrics_that_there_are() -> None:
    for each in ALERTS:
        requested = set(re.findall(r"(?<!:)\b(?:tessera|DCGM_FI)_\w+", each["expr"]))
        recorded = {name for name in RECORDED if name in each["expr"]}
        assert {name.removesuffix("_bucket") for name in requested} <= EXPOSED, each["alert"]
        components = set(re.findall(r'\bup\{tessera="(\w+)"\}', each["expr"]))
        assert components <= COMPONENTS, each["alert"]
        assert requested | recorded | components


def test_each_alert_has_a_case() -> None:
    tested = [each["name"] for path in CASES for each in yaml.safe_load(path.read_text())["tests"]]
    assert tested == [each["alert"] for each in ALERTS]


def test_prometheus_adapter_serves_the_metrics_of_tessera_metrics_from_what_is_recorded() -> None:
    """All but the replicas, which `tessera metrics` alone decides."""
    metrics = ModelServerMetrics(ModelServerAutoscaler(MemoryKube(), ScrapedSamples(MemoryMetrics()), logger()))
    assert {("pods", each["name"]["as"]) for each in ADAPTER["rules"]} == metrics.custom()
    assert {each["name"]["as"] for each in ADAPTER["externalRules"]} == metrics.external() - {"tessera_replicas"}
    requested = {each["seriesQuery"].partition("{")[0] for each in (*ADAPTER["rules"], *ADAPTER["externalRules"])}
    assert requested == RECORDED


@pytest.mark.parametrize("engine", ["triton", "vllm"])
def test_what_keda_asks_is_the_wait_across_restarts_of_idle_and_of_stuck_servers(engine: str, tmp_path: Path) -> None:
    """Ten requests a step of 30 s wait 3 s each; one server restarts, one has no requests, one serves none of five."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, by which Prometheus checks expressions, is not on PATH")
    names = {
        "triton": (
            "nv_inference_queue_duration_us",
            "nv_inference_request_success",
            "nv_inference_pending_request_count",
        ),
        "vllm": (
            "vllm:request_queue_time_seconds_sum",
            "vllm:request_queue_time_seconds_count",
            "vllm:num_requests_waiting",
        ),
    }[engine]
    waited = 30_000_000 if engine == "triton" else 30
    servers = {
        "restarts": (f"0+{waited}x30 0+{waited}x30", "0+10x30 0+10x30", "2x61"),
        "idle": ("7x61", "9x61", "0x61"),
        "stuck": ("7x61", "9x61", "5x61"),
    }
    series = [
        {"series": f'{name}{{namespace="n",pod="p",serving_tessera_dev_server="{server}"}}', "values": values}
        for server, columns in servers.items()
        for name, values in zip(names, columns, strict=True)
    ]
    wants = {"restarts": 3, "idle": 0, "stuck": 120}
    tests = [
        {
            "expr": f"round({queue_time_query(engine, server, 'n')}, 0.01)",  # type: ignore[arg-type]  # a plain text
            "eval_time": moment,
            "exp_samples": [{"labels": "{}", "value": want}],
        }
        for server, want in wants.items()
        for moment in ("16m", "20m")
    ]
    gone = {"expr": queue_time_query(engine, "none", "n"), "eval_time": "20m", "exp_samples": []}  # type: ignore[arg-type]
    case = {"interval": "30s", "input_series": series, "promql_expr_test": [*tests, gone]}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"evaluation_interval": "30s", "tests": [case]}))
    command = [promtool, "test", "rules", "case.yaml"]
    result = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_alert_fires_for_what_it_is_about_alone(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, by which Prometheus checks rules, is not on PATH")
    cases = (*CASES, SITUATIONS)
    for path in (*RULES, *cases):
        shutil.copy(path, tmp_path)
    for command in (["check", "rules", *(each.name for each in RULES)], ["test", "rules", *(e.name for e in cases)]):
        result = subprocess.run([promtool, *command], cwd=tmp_path, check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
