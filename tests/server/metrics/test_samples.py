"""Where the counters of pods come from: a real Prometheus that scraped them, and one that does not answer."""

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.measuredservers import model_pod, triton
from harness.prometheusserver import history, serving_history
from tessera.api.kubernetes.modelpods import read_pod
from tessera.api.prometheus.podsamples import pod_query
from tessera.clients.prometheus import AnswerTooLarge, HttpMetrics, MemoryMetrics
from tessera.core.serving.autoscaling.serverfacts import ModelPod
from tessera.core.serving.metrics.counters import Counters, Unmeasured
from tessera.errors import Unavailable
from tessera.server.metrics.samples import PodName, PrometheusSamples, ScrapedSamples

pytestmark = pytest.mark.anyio
URL = "http://prometheus:9090"


def pods(*names: str) -> dict[PodName, ModelPod]:
    return {("ns", name): read_pod(model_pod(name, address="10.0.0.1")) for name in names}


class Asked(MemoryMetrics):
    """Records which pods are scraped; some have no answer, and for some there is no time."""

    def __init__(self) -> None:
        super().__init__()
        self.silent, self.late = set[str](), set[str]()
        self.scraped: list[str] = []

    async def get(self, url: str) -> bytes:
        name = url.removeprefix("http://").removesuffix("/metrics")
        self.scraped.append(name)
        if name in self.silent:
            raise Unavailable(url, found="no answer in 3 s", hint="check that it runs")
        if name in self.late:
            raise TimeoutError
        return triton(ended=1)

    async def order(self, samples: ScrapedSamples, *names: str) -> str:
        """Return the pods that are scraped in a pass; a pod is named by its namespace and number, as a1."""
        self.scraped.clear()
        one = read_pod(model_pod("p", address="10.0.0.1"))
        await samples.read(
            {(name[0], name): msgspec.structs.replace(one, url=f"http://{name}/metrics") for name in names}
        )
        return " ".join(self.scraped)


async def test_no_namespace_starves_another() -> None:
    """Each pass begins with another one."""
    metrics = Asked()
    samples, names = ScrapedSamples(metrics), ("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert await metrics.order(samples, *names) == "a1 b1 c1 a2 b2 a3 a4"
    assert await metrics.order(samples, *names) == "b1 c1 a1 b2 a2 a3 a4"
    assert await metrics.order(samples, *names) == "c1 a1 b1 a2 b2 a3 a4"
    assert await metrics.order(samples, *names) == "a1 b1 c1 a2 b2 a3 a4"


async def test_pods_that_give_no_answer_are_asked_last_and_in_turn_by_namespace() -> None:
    metrics = Asked()
    samples, names = ScrapedSamples(metrics), ("a1", "a2", "a3", "a4", "b1", "b2")
    metrics.silent = {"a1", "a2", "a3", "b1"}
    await metrics.order(samples, *names)
    assert await metrics.order(samples, *names) == "b2 a4 b1 a1 a2 a3"
    metrics.silent = set()
    await metrics.order(samples, *names)
    assert await metrics.order(samples, *names) == "b1 a1 b2 a2 a3 a4", "all answered"


async def test_pods_for_which_there_was_no_time_come_before_those_that_gave_none() -> None:
    """In their namespace they come first."""
    metrics = Asked()
    samples, names = ScrapedSamples(metrics), ("a1", "a2", "a3", "a4", "b1", "b2")
    metrics.silent, metrics.late = {"a1"}, {"a3", "b2"}
    await metrics.order(samples, *names)
    assert await metrics.order(samples, *names) == "b2 a3 b1 a2 a4 a1"


class Counted(MemoryMetrics):
    """Counts how many pods are asked at once, of those that answer and of those that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.most = {"good": 0, "evil": 0}, {"good": 0, "evil": 0}

    async def get(self, url: str) -> bytes:
        kind = url.removeprefix("http://")[:4]
        self.asked[kind] += 1
        self.most[kind] = max(self.most[kind], self.asked[kind])
        for _ in range(20):
            await asyncio.sleep(0)
        self.asked[kind] -= 1
        return triton(ended=1) if kind == "good" else b"<html>"


async def test_few_pods_are_asked_at_once_of_those_that_failed_a_while_ago() -> None:
    """What they answer may be made to be long to read; 64 that do so held up requests for seconds."""
    metrics, one = Counted(), read_pod(model_pod("p", address="10.0.0.1"))
    samples = ScrapedSamples(metrics)
    every = {
        ("ns", f"{kind}-{number}"): msgspec.structs.replace(one, url=f"http://{kind}-{number}/metrics")
        for kind in ("good", "evil")
        for number in range(30)
    }
    for want in ({"good": 30, "evil": 30}, {"good": 30, "evil": 8}):
        metrics.most = {"good": 0, "evil": 0}
        found = await samples.read(every)
        assert metrics.most == want
        assert {isinstance(each, Counters) for name, each in found.items() if name[1].startswith("good")} == {True}
    for _ in range(20):
        await samples.read({name: pod for name, pod in every.items() if name[1].startswith("good")})
    metrics.most = {"good": 0, "evil": 0}
    await samples.read(every)
    assert metrics.most == {"good": 30, "evil": 30}, "forgotten after five minutes"


async def test_others_of_the_loop_have_turns_between_two_answers_that_are_read() -> None:
    """A request to the metrics APIs waits for one long answer of a pod, not for those of all."""
    turns, read = 0, list[int]()

    class Noted(bytes):
        def count(self, *given: Any) -> int:
            read.append(turns)
            return super().count(*given)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Answers(MemoryMetrics):
        async def get(self, url: str) -> bytes:
            return Noted(await super().get(url))

    answers = Answers()
    answers.contents["http://10.0.0.1:8002/metrics"] = triton(ended=1)
    task = asyncio.create_task(others())
    names = tuple(f"p{number}" for number in range(100))
    found = await ScrapedSamples(answers).read(pods(*names))
    task.cancel()
    assert all(isinstance(each, Counters) for each in found.values())
    assert len(set(read)) == len(read) == 100


def labeled(text: bytes, pod: str) -> bytes:
    """Return what a pod exposes as Prometheus stores it."""
    lines = text.decode().splitlines(keepends=True)
    own = f'namespace="ns",pod="{pod}",job="models",'
    return "".join(line.replace("{", "{" + own, 1) if not line.startswith("#") else line for line in lines).encode()


async def test_what_a_real_prometheus_scraped_last(tmp_path: Path) -> None:
    now_s = time.time()
    text = labeled(triton(ended=100, queued_s=5, served_s=30, waiting=3), "llm-1")
    with serving_history(tmp_path, history(text, (now_s - 50, now_s - 20))) as url:
        found = await PrometheusSamples(HttpMetrics, url).read(pods("llm-1", "other"))
    counters = found["ns", "llm-1"]
    assert isinstance(counters, Counters)
    assert counters.at_s == pytest.approx(now_s - 20, abs=0.002)
    assert (counters.dequeued, counters.queued_s) == (200.0, 10.0)
    assert counters.served_s == pytest.approx(60.0)
    assert found["ns", "other"] == Unmeasured(f"Prometheus {url} has no series of it; is its port of metrics scraped?")


async def test_of_two_clusters_in_one_prometheus_the_matchers_choose(tmp_path: Path) -> None:
    """Pods of one name; without a choice their counters would be taken for one pod's."""
    now_s = time.time()
    samples = "".join(
        history(
            labeled(triton(ended=ended), "llm-1").replace(b"{", b'{cluster="%s",' % cluster), (now_s - 50, now_s - 20)
        )
        for cluster, ended in ((b"a", 100), (b"b", 300))
    )
    found = {}
    with serving_history(tmp_path, samples) as url:
        for cluster in ("a", "b"):
            read = await PrometheusSamples(HttpMetrics, url, f'cluster="{cluster}"').read(pods("llm-1"))
            counters = read["ns", "llm-1"]
            assert isinstance(counters, Counters)
            found[cluster] = counters.dequeued
    assert found == {"a": 200, "b": 600}


BAD: dict[str, tuple[bytes | Unavailable, str]] = {
    "down": (Unavailable("x", found="no answer in 10 s", hint="check that it runs"), "no answer in 10 s"),
    "a login page": (b"<html>", "it is not an answer of Prometheus' HTTP API"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_prometheus_that_does_not_answer_is_the_reason_for_every_pod(case: str) -> None:
    answer, want = BAD[case]
    metrics = MemoryMetrics()
    samples = PrometheusSamples(lambda: nullcontext(metrics), URL)
    metrics.contents[samples.target()] = answer
    found = await samples.read(pods("a", "b"))
    assert found.keys() == {("ns", "a"), ("ns", "b")}
    for each in found.values():
        assert isinstance(each, Unmeasured)
        assert each.reason.startswith(f"Prometheus {URL}: ")
        assert want in each.reason


def triton_series(at_s: float, **queued_us: str) -> bytes:
    """Return what Prometheus has of the pods of a Triton, by their names, each with its sum of waits."""
    series = [
        {"metric": {"__name__": f"nv_inference_{name}", "namespace": "ns", "pod": pod}, "values": [(at_s, number)]}
        for pod, text in queued_us.items()
        for name, number in (("queue_duration_us", text), ("compute_infer_duration_us", "9"), ("request_success", "9"))
    ]
    return msgspec.json.encode({"data": {"result": series}})


async def test_a_value_that_no_counter_has_is_that_pods_alone() -> None:
    metrics = MemoryMetrics()
    samples = PrometheusSamples(lambda: nullcontext(metrics), f"{URL}/")
    metrics.contents[samples.target()] = triton_series(2000, a="NaN", b="1000000")
    found = await samples.read(pods("a", "b"))
    assert found["ns", "a"] == Unmeasured("nv_inference_queue_duration_us is nan, not from 0 to 1e+15")
    assert isinstance(found["ns", "b"], Counters)


async def test_a_pod_with_too_many_series_fails_in_its_namespace_alone() -> None:
    metrics = MemoryMetrics()
    samples = PrometheusSamples(lambda: nullcontext(metrics), URL)
    metrics.contents[samples.target()] = AnswerTooLarge(URL, found="an answer of more than 1 bytes", hint="less")
    metrics.contents[samples.target("wild")] = metrics.contents[samples.target()]
    metrics.contents[samples.target("ns")] = triton_series(2000, a="1000000")
    both = {**pods("a"), ("wild", "b"): pods("b")["ns", "b"]}
    for _ in range(20):
        found = await samples.read(both)
        assert isinstance(found["ns", "a"], Counters)
        assert found["wild", "b"] == Unmeasured(f"Prometheus {URL}: an answer of more than 1 bytes")
    metrics.contents[samples.target()] = b'{"data": {"result": []}}'
    found = await samples.read(both)
    want = Unmeasured(f"Prometheus {URL} has no series of it; is its port of metrics scraped?")
    assert set(found.values()) == {want}, "after some passes all are queried at once again"
    metrics.contents[samples.target()] = AnswerTooLarge(URL, found="too much", hint="less")
    assert await samples.read(pods("a")) == {("ns", "a"): Unmeasured(f"Prometheus {URL}: too much")}


async def test_a_scrape_of_before_a_restart_is_not_counted_since_it() -> None:
    """The pod's status already has the new start: all that the former process counted would be of a moment."""
    metrics = MemoryMetrics()
    samples = PrometheusSamples(lambda: nullcontext(metrics), URL)
    (name, pod), *_ = pods("a").items()
    found = []
    for at_s in (pod.started_s - 5, pod.started_s + 5):
        metrics.contents[samples.target()] = triton_series(at_s, a="1000000")
        found.append((await samples.read({name: pod}))[name])
    assert found[0] == Unmeasured("scraped before its container restarted; the next scrape compares", too_early=True)
    assert isinstance(found[1], Counters)


async def test_missing_files_are_reported_and_without_pods_nothing_is_queried() -> None:
    def connect() -> HttpMetrics:
        raise FileNotFoundError(2, "No such file", "token")

    samples = PrometheusSamples(connect, URL)
    assert await samples.read({}) == {}
    (found,) = (await samples.read(pods("a"))).values()
    assert isinstance(found, Unmeasured)
    assert "is not queried: " in found.reason


def test_the_question_is_one_for_all_pods() -> None:
    assert "/api/v1/query?query=" in PrometheusSamples(HttpMetrics, URL).target()
    assert pod_query().count("{") == 1
