"""Metrics by rules, over a real Prometheus, and one that is down, slow or talks nonsense; files that change."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.adapterrules import PUBLISHED
from harness.prometheusserver import history, serving_history
from harness.serving import free_port, served
from tessera.api.kubernetes.labelselectors import read_selector
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.clients.kube import PODS, MemoryKube
from tessera.clients.prometheus import HttpMetrics
from tessera.errors import InvalidInput, TesseraError, Unavailable
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.metrics.adaptermetrics import AdapterMetrics, RulesFile, RulesSource
from tessera.server.metrics.sources import JoinedSources, MetricAbsent

pytestmark = pytest.mark.anyio
RULES: Final = """\
rules:
- seriesQuery: 'depth{pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
externalRules:
- seriesQuery: depth
  resources: {namespaced: false}
  name: {as: all_depth}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (queue)
"""
NO_METRICS: Final = JoinedSources(())


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


def ruled(path: Path, url: str, kube: MemoryKube | None = None, measures: Measures | None = None) -> AdapterMetrics:
    source = RulesSource(file=RulesFile(path), connect=lambda: HttpMetrics(deadline_s=1.0), url=url)
    return AdapterMetrics(source, kube or MemoryKube(), logger(), measures or Measures(), served=NO_METRICS)


def put(path: Path, text: str | None) -> None:
    """Replace a file, or take it away."""
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


def of_pods(metric: str, name: str = "", *, selector: str = "", metrics: str = "") -> Custom:
    chosen, series = read_selector(selector, "t"), read_selector(metrics, "t")
    return Custom(
        version="v1beta1",
        resource="pods",
        metric=metric,
        namespace="ns",
        name=name,
        selector=chosen,
        metric_selector=series,
    )


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "ns", "labels": labels}}


async def test_a_real_prometheus(rules: Path, tmp_path: Path) -> None:
    lines = [
        'depth{namespace="ns",pod="a",queue="x"} 1.2345',
        'depth{namespace="ns",pod="a",queue="y"} 1',
        'depth{namespace="ns",pod="b",queue="x"} 4',
        'depth{namespace="other",pod="c",queue="x"} 8',
    ]
    now_s = time.time()
    kube = MemoryKube()
    for each in (pod("a", app="one"), pod("b", app="two"), pod("c", app="one")):
        await kube.create(PODS, each)
    text = "# TYPE depth gauge\n" + "".join(f"{line}\n" for line in lines)
    with serving_history(tmp_path, history(text.encode(), (now_s - 20, now_s - 5))) as url:
        one = ruled(rules, url, kube)
        await one.discover()
        assert one.custom() == {("pods", "depth"), ("namespaces", "depth")}
        assert one.external() == {"all_depth"}
        cases = {
            "all": (of_pods("depth"), [("a", 2.234), ("b", 4)]),
            "one": (of_pods("depth", "b"), [("b", 4)]),
            "selected": (of_pods("depth", selector="app=one"), [("a", 2.234)]),
            "of a kind": (of_pods("depth", selector="app in (one,two),!x", metrics="queue=y"), [("a", 1)]),
        }
        for case, (requested, want) in cases.items():
            assert [(each.name, each.value) for each in await one.values(requested)] == want, case
        namespace = Custom(version="v1beta2", resource="namespaces", metric="depth", name="ns")
        assert [(each.name, each.namespace, each.value) for each in await one.values(namespace)] == [("ns", "", 6.234)]
        external = await one.series(External(metric="all_depth", namespace="ns"))
        assert sorted((each.labels["queue"], each.value) for each in external) == [("x", 13.234), ("y", 1)]
        some = External(metric="all_depth", namespace="ns", selector=read_selector("namespace=other", "t"))
        assert [each.value for each in await one.series(some)] == [8]
        with pytest.raises(MetricAbsent, match="metric depth of pods in namespace ns: no such object is selected"):
            await one.values(of_pods("depth", selector="app=none"))
        with pytest.raises(
            MetricAbsent, match=r"Prometheus .* has no value of it: query it: sum\(depth\{namespace=\"ns\",pod="
        ):
            await one.values(of_pods("depth", "gone"))
        with pytest.raises(InvalidInput, match="is not one that Kubernetes has"):
            await one.values(of_pods("depth", 'a"} or vector(1)#'))


class Talks(BaseHTTPRequestHandler):
    """A Prometheus that says of `depth` what the test says."""

    series: Any = ({"__name__": "depth", "namespace": "", "pod": ""},)
    answer: Any = b""
    code = 200
    wait_s = 0.0

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/api/v1/series":
            self._send(200, {"status": "success", "data": self.series})
            assert parse_qs(urlsplit(self.path).query).keys() == {"match[]", "start"}
            return
        time.sleep(self.wait_s)
        self._send(self.code, self.answer)

    def _send(self, code: int, body: Any) -> None:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        with suppress(ConnectionError):  # who does not wait
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def talking(**given: Any) -> Iterator[str]:
    handler = type("Given", (Talks,), given)
    with served(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


def vector(*values: str, **labels: str) -> dict[str, Any]:
    result = [{"metric": {"pod": "a"} | labels, "value": [1.0, each]} for each in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


BAD: dict[str, tuple[dict[str, Any], type[TesseraError], str]] = {
    "no answer": ({"wait_s": 1.5}, Unavailable, "no answer in 1 s: query it: sum("),
    "an error": ({"code": 422, "answer": {"error": "too slow"}}, Unavailable, "HTTP 422, "),
    "a login page": ({"answer": b"<html>"}, Unavailable, "it is not Prometheus' answer to an instant query"),
    "a range": (
        {"answer": {"data": {"resultType": "matrix", "result": []}}},
        Unavailable,
        "it is not Prometheus' answer to an instant query",
    ),
    "a value that is not a number": ({"answer": vector("many")}, Unavailable, "it is not Prometheus' answer"),
    "nothing": ({"answer": vector()}, MetricAbsent, "has no value of it"),
    "infinity": ({"answer": vector("+Inf")}, MetricAbsent, "inf is not a number that an autoscaler can use"),
    "an absurd number": ({"answer": vector("1e300")}, MetricAbsent, "1e+300 is not a number"),
    "two series of an object": ({"answer": vector("1", "2")}, MetricAbsent, "pod 'a' has two series"),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_answers_are_errors_that_say_why(rules: Path, case: str) -> None:
    given, kind, want = BAD[case]
    with talking(**given) as url:
        one = ruled(rules, url)
        await one.discover()
        with pytest.raises(kind) as error:
            await one.values(of_pods("depth", "a"))
    assert want in str(error.value)
    assert str(error.value).startswith("metric depth of pods in namespace ns: ")


async def test_a_division_by_nothing_is_0_of_an_object_and_an_error_of_an_external_metric(rules: Path) -> None:
    with talking(answer=vector("NaN")) as url:
        one = ruled(rules, url)
        await one.discover()
        assert [each.value for each in await one.values(of_pods("depth", "a"))] == [0]
        with pytest.raises(MetricAbsent, match="nan is not a number"):
            await one.series(External(metric="all_depth", namespace="ns"))


async def test_a_scalar_is_a_series_without_labels(rules: Path) -> None:
    with talking(answer={"data": {"resultType": "scalar", "result": [1.0, "7"]}}) as url:
        one = ruled(rules, url)
        await one.discover()
        (found,) = await one.series(External(metric="all_depth", namespace="ns"))
    assert (found.labels, found.value) == ({}, 7)


async def test_a_prometheus_that_is_down_serves_nothing_and_later_its_former_series(rules: Path) -> None:
    measures = Measures()
    url = f"http://127.0.0.1:{free_port()}"
    one = ruled(rules, url, measures=measures)
    with capture_logs() as logs:
        await one.discover()
        await one.discover()
    (reason,) = [each["reason"] for each in logs if each["event"] == "series_not_known"]
    assert reason.startswith("'depth': ")
    assert reason.endswith("; and 1 more")
    assert (one.custom(), one.external(), one.tried.is_set()) == (frozenset(), frozenset(), True)
    assert b'tessera_metrics_rule_queries_total{result="failed"} 4' in measures.render()
    with talking() as other:
        one._url = other.rstrip("/")
        await one.discover()
    assert one.external() == {"all_depth"}
    await one.discover()  # down again
    assert one.external() == {"all_depth"}
    with pytest.raises(Unavailable):
        await one.series(External(metric="all_depth", namespace="ns"))


async def test_one_broken_query_takes_no_other_rule_away(rules: Path, tmp_path: Path) -> None:
    put(rules, f"{RULES}- {{seriesQuery: '{{', metricsQuery: up}}\n")
    now_s = time.time()
    text = '# TYPE depth gauge\ndepth{namespace="ns",pod="a"} 1\n'
    with serving_history(tmp_path, history(text.encode(), (now_s - 5,))) as url, capture_logs() as logs:
        one = ruled(rules, url)
        await one.discover()
    assert one.external() == {"all_depth"}
    (reason,) = [each["reason"] for each in logs if each["event"] == "series_not_known"]
    assert reason.startswith("'{': HTTP 400, ")


async def test_a_file_that_changes_counts_and_a_broken_one_leaves_the_rules_before(rules: Path) -> None:
    measures = Measures()
    with talking() as url, capture_logs() as logs:
        one = ruled(rules, url, measures=measures)
        await one.discover()
        assert not await one.read_again()
        put(rules, RULES.replace("metricsQuery", "metricQuery"))
        assert not await one.read_again()
        assert not await one.read_again()  # logged once
        assert b"tessera_metrics_rules_invalid 1" in measures.render()
        await one.discover()
        assert one.external() == {"all_depth"}
        put(rules, None)
        assert not await one.read_again()
        put(rules, RULES.replace("all_depth", "other"))
        assert await one.read_again()
        assert b"tessera_metrics_rules_invalid 0" in measures.render()
        await one.discover()
        assert one.external() == {"other"}
    broken = [each["reason"] for each in logs if each["event"] == "adapter_rules_broken"]
    assert len(broken) == 2
    assert "line 4: rules[0].metricQuery: it is an unknown field" in broken[0]
    assert broken[0].endswith("; the rules before it are kept")
    assert "No such file" in broken[1]


async def test_the_same_file_again_after_a_gap_is_well_again(rules: Path) -> None:
    measures = Measures()
    one = ruled(rules, "http://127.0.0.1:1", measures=measures)
    put(rules, None)
    assert not await one.read_again()
    put(rules, RULES)
    assert await one.read_again()
    assert b"tessera_metrics_rules_invalid 0" in measures.render()


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(b"#" * (17 << 20))
    with pytest.raises(InvalidInput, match="it has more than 16777216 bytes: write fewer rules"):
        RulesFile(path)


async def test_metrics_of_tessera_take_precedence_over_rules_and_a_log_entry_names_them(rules: Path) -> None:
    with talking() as url, capture_logs() as logs:
        own = ruled(rules, url)
        await own.discover()
        source = RulesSource(file=RulesFile(rules), connect=HttpMetrics, url=url)
        one = AdapterMetrics(source, MemoryKube(), logger(), Measures(), served=own)
        await one.discover()
    (reason,) = [each["reason"] for each in logs if each["event"] == "adapter_rules_hidden"]
    assert reason.startswith("namespaces/depth, pods/depth, all_depth are served as Tessera measures them")


async def test_rules_for_more_series_than_can_be_compared_leave_what_was_served(rules: Path) -> None:
    series = [{"__name__": f"depth_{number}", "pod": ""} for number in range(2_000)]
    with talking() as url, capture_logs() as logs:
        one = ruled(rules, url)
        await one.discover()
        put(rules, "rules:\n" + "- {seriesQuery: x, metricsQuery: x}\n" * 600)
        assert await one.read_again()
        with talking(series=series) as other:
            one._url = other.rstrip("/")
            await one.discover()
    assert b"tessera_metrics_rules_invalid 1" in one._measures.render()
    (reason,) = [each["reason"] for each in logs if each["event"] == "adapter_rules_too_wide"]
    assert "600 rules are for 1200000 names of series together" in reason
    assert one.external() == {"all_depth"}


async def test_it_runs_until_it_is_cancelled_and_says_what_is_not_served(rules: Path) -> None:
    put(rules, "resourceRules: {}" + PUBLISHED["Triton's chart"])
    measures = Measures()
    with talking(series=[{"__name__": "nv_inference_queue_duration_us", "namespace": "", "pod": ""}]) as url:
        one = ruled(rules, url, measures=measures)
        with capture_logs() as logs:
            task = asyncio.create_task(one.run())
            await asyncio.wait_for(one.tried.wait(), 30)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert one.custom() == {("pods", "avg_time_queue_us"), ("namespaces", "avg_time_queue_us")}
    assert ["ignored" in each["reason"] for each in logs if each["event"] == "adapter_rule_not_served"] == [True]
    assert b"tessera_metrics_rules_invalid 0" in measures.render()


async def test_files_of_the_client_that_are_gone_are_why_nothing_is_known(rules: Path) -> None:
    def connect() -> HttpMetrics:
        raise FileNotFoundError("token")

    source = RulesSource(file=RulesFile(rules), connect=connect, url="http://127.0.0.1:1")
    one = AdapterMetrics(source, MemoryKube(), logger(), Measures(), served=NO_METRICS)
    with talking() as url:
        one._connect = HttpMetrics
        one._url = url.rstrip("/")
        await one.discover()
    one._connect = connect
    with capture_logs() as logs:
        await one.discover()
    assert ["'token'" in each["reason"] for each in logs if each["event"] == "series_not_known"] == [True]
    with pytest.raises(TesseraError, match="'token'"):
        await one.series(External(metric="all_depth", namespace="ns"))
