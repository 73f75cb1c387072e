"""Passes over model servers in memory: what is measured, decided and reported, and bad input."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.measuredservers import SERVER, autoscaler, deployment, model_pod, triton
from harness.metricsscenes import DOWN, WHOLE, Scene, scene
from tessera.api.kubernetes.labelselectors import read_selector
from tessera.api.kubernetes.metrics.paths import External
from tessera.api.prometheus.pendingrequests import PendingRequests
from tessera.clients.kube import AUTOSCALERS, DEPLOYMENTS, EVENTS, PODS
from tessera.clients.prometheus import MemoryMetrics
from tessera.core.serving.autoscaling.autoscaler import replicas_text
from tessera.core.serving.autoscaling.recordedpass import RecordedPass, replay
from tessera.core.serving.autoscaling.serverfacts import ModelPod
from tessera.core.serving.metrics.counters import Counters, Unmeasured
from tessera.errors import Unavailable
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.metrics.autoscaling import ModelServerAutoscaler
from tessera.server.metrics.samples import PodName, ScrapedSamples
from tessera.server.metrics.sources import MetricAbsent

pytestmark = pytest.mark.anyio


async def test_replicas_follow_the_load_and_each_decision_is_an_event() -> None:
    async with scene(*WHOLE) as one:
        for number in range(1, 41):
            content = triton(ended=100 + number, queued_s=9.0 * number, served_s=30.0 * number, waiting=20)
            await one.reconcile(content, content)
        assert await one.replicas() > 1
        reason, message = (await one.events())[-1]
        assert reason == "ReplicasProposed"
        assert "replicas: expects" in message
        assert "requests in flight in 90 s" in message, "the cold start that was measured"


async def test_the_log_has_the_input_of_each_decision() -> None:
    async with scene(*WHOLE) as one:
        with capture_logs() as logs:
            for number in range(1, 41):
                content = triton(ended=100 + number, queued_s=9.0 * number, served_s=30.0 * number, waiting=20)
                await one.reconcile(content, content)
        recorded = [each["recorded"] for each in logs if each["event"] == "model_server_measured"]
        passes = [msgspec.json.decode(msgspec.json.encode(each), type=RecordedPass) for each in recorded]
        assert len(passes) == 40
        last = one.servers.measured["ns", "llm"].decision
        assert [*replay(passes)][-1] == last
        assert last.replicas is not None
        assert last.replicas > 1


BAD_INPUT: dict[str, tuple[bytes | Unavailable, str]] = {
    "no answer": (DOWN, "no answer in 5 s; the"),
    "NaN": (b'nv_inference_queue_duration_us{model="m"} nan\n', "nv_inference_queue_duration_us is nan"),
    "infinite": (b'nv_inference_queue_duration_us{model="m"} +Inf\n', "nv_inference_queue_duration_us is inf"),
    "absurd": (triton(ended=10**16), "nv_inference_request_success is 1e+16"),
    "negative": (triton(ended=-1), "nv_inference_request_success is -1"),
    "another program": (b"<html>", "no series of queue time"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
async def test_bad_input_keeps_the_decision_for_five_minutes_and_says_so(case: str) -> None:
    content, want = BAD_INPUT[case]
    async with scene(*WHOLE) as one:
        for number in range(3):
            await one.reconcile(triton(ended=100 + number), triton(ended=100 + number))
        good = await one.replicas()
        await one.reconcile(content, content)
        assert await one.replicas() == good
        await one.reconcile(content, content, seconds=280)
        assert await one.replicas() == good
        await one.reconcile(content, content, seconds=5)
        with pytest.raises(MetricAbsent) as caught:
            await one.replicas()
        assert want in str(caught.value)
        assert "the replicas do not change" in str(caught.value)
        with pytest.raises(MetricAbsent, match="llm-1: "):
            await one.pods()
        bad = {message for reason, message in await one.events() if reason == "ScalingInputBad" and want in message}
        assert {each.partition(":")[0] for each in bad} == {replicas_text(round(good)), "no number of replicas"}
        await one.reconcile(triton(ended=200), triton(ended=200))
        await one.reconcile(triton(ended=200), triton(ended=200))
        assert await one.replicas() == good, "and it goes on when it can"


class Malformed:
    """The pods' own samples, but from a moment on a text for a number of one server's pod."""

    def __init__(self, samples: ScrapedSamples) -> None:
        self.samples = samples
        self.pod = ""

    async def read(self, pods: Mapping[PodName, ModelPod]) -> dict[PodName, Counters | Unmeasured]:
        found = await self.samples.read(pods)
        malformed: Any = "many"
        return {
            name: msgspec.structs.replace(each, completed=malformed)
            if name[1] == self.pod and isinstance(each, Counters)
            else each
            for name, each in found.items()
        }


async def test_a_defect_about_one_server_leaves_the_others_measured_and_keeps_its_last_decision() -> None:
    one, measures = Scene(), Measures()
    source = Malformed(one.scraped())
    one.servers = ModelServerAutoscaler(one.kube, source, logger(), measures=measures, now_s=lambda: one.now_s)
    other = (DEPLOYMENTS, deployment("ocr", slots="4")), (AUTOSCALERS, autoscaler("ocr"))
    pods = (PODS, model_pod("llm-1", address="10.0.0.1")), (PODS, model_pod("ocr-1", "ocr", address="10.0.0.2"))

    async def replicas(server: str) -> float:
        selector = read_selector(f"{SERVER}={server}", "s")
        requested = External(metric="tessera_replicas", namespace="ns", selector=selector)
        (series,) = await one.metrics.series(requested)
        return series.value

    async with scene(*WHOLE[:2], *other, *pods, one=one):
        for number in range(3):
            await one.reconcile(triton(ended=100 + number), triton(ended=100 + number))
        assert [await replicas("llm"), await replicas("ocr")] == [1, 1]
        source.pod = "llm-1"
        with capture_logs() as logs:
            for number in range(21):
                await one.reconcile(triton(ended=110 + number), triton(ended=110 + number))
                assert await replicas("ocr") == 1
                assert await one.pods(name="ocr-1") == {"ocr-1": 0.0}
                if number < 19:
                    assert await replicas("llm") == 1, "the last decision, for five minutes"
        with pytest.raises(MetricAbsent, match="an error in `tessera metrics` itself, see its log"):
            await replicas("llm")
        with pytest.raises(MetricAbsent, match="an error in `tessera metrics` itself, see its log"):
            await one.pods(name="llm-1")
        (logged,) = [each for each in logs if each["event"] == "model_server_not_measured"]
        assert (logged["namespace"], logged["server"]) == ("ns", "llm")
        assert isinstance(logged["exc_info"], TypeError)
        assert b'tessera_model_server_input_invalid{namespace="ns",server="llm"} 1' in measures.render()
        assert any("an error in `tessera metrics` itself" in message for _, message in await one.events())
        source.pod = ""
        for number in range(2):
            await one.reconcile(triton(ended=200 + number), triton(ended=200 + number))
        assert await replicas("llm") == 1


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)  # the watches of what is in memory go on when they get a turn


TO_ZERO: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by the annotation": (deployment(slots="4", idle_seconds="600"), autoscaler()),
    "by its autoscaler, from Kubernetes 1.37 on": (deployment(slots="4"), autoscaler(min_replicas=0)),
}


@pytest.mark.parametrize("case", TO_ZERO)
async def test_an_idle_server_is_scaled_to_zero_and_back_when_it_is_woken(case: str) -> None:
    each, scaler = TO_ZERO[case]
    async with scene((DEPLOYMENTS, each), (AUTOSCALERS, scaler), (PODS, model_pod())) as one:
        for _ in range(3):
            await one.reconcile(triton(ended=100))
        assert await one.replicas() == 1
        for _ in range(81):
            await one.reconcile(triton(ended=100))
        assert await one.replicas() == 0
        await one.kube.patch(DEPLOYMENTS, "llm", {"spec": {"replicas": 0}}, namespace="ns")
        await one.kube.delete(PODS, "llm-1", namespace="ns")
        await turns()
        for _ in range(30):
            await one.reconcile()
        assert await one.replicas() == 0
        moment = dt.datetime.fromtimestamp(one.now_s, dt.UTC).isoformat()
        wake = {"metadata": {"annotations": {"serving.tessera.dev/wake": moment}}}
        await one.kube.patch(DEPLOYMENTS, "llm", wake, namespace="ns")
        await turns()
        await one.reconcile()
        assert await one.replicas() == 1
        await one.kube.patch(DEPLOYMENTS, "llm", {"spec": {"replicas": 1}}, namespace="ns")
        starts = model_pod("llm-2")
        starts["status"]["conditions"] = []
        await one.kube.create(PODS, starts)
        await turns()
        for _ in range(200):
            await one.reconcile(DOWN)
        assert await one.replicas() == 1, "it starts, however long that takes"
        events = await one.events()
        assert {message for _, message in events} == {
            "1 replica: expects 0 requests in flight in 90 s, plus a margin of 2: 1 replica with 4 slots",
            f"0 replicas: no request for {600 if 'annotation' in case else 1200} s, so no replica",
            "1 replica: woken",
        }
        assert {reason for reason, _ in events} == {"ReplicasProposed"}


async def test_a_repeated_first_scrape_is_not_bad_input() -> None:
    """As from a Prometheus that scrapes less often than we look."""
    one = Scene()
    one.servers = ModelServerAutoscaler(one.kube, Repeated(), logger(), now_s=lambda: one.now_s)
    async with scene(*WHOLE, one=one):
        with capture_logs() as logs:
            await one.reconcile()
            await one.reconcile()
        assert [each for each in logs if each["log_level"] == "warning"] == []
        assert await one.events() == []
        with pytest.raises(MetricAbsent, match="scraped once so far; the next scrape compares"):
            await one.replicas()


async def test_a_server_whose_pods_start_has_no_bad_input() -> None:
    """Its model loads, for longer than a decision is kept."""
    one, measures = Scene(), Measures()
    one.servers = ModelServerAutoscaler(one.kube, one.scraped(), logger(), measures=measures, now_s=lambda: one.now_s)
    starts = model_pod()
    starts["status"]["conditions"] = []
    async with scene((DEPLOYMENTS, deployment(slots="4")), (AUTOSCALERS, autoscaler()), (PODS, starts), one=one):
        for _ in range(30):
            await one.reconcile(DOWN)
        assert await one.events() == []
        assert b'tessera_model_server_input_invalid{namespace="ns",server="llm"} 0' in measures.render()
        with pytest.raises(MetricAbsent, match="no answer in 5 s"):
            await one.replicas()


async def test_a_server_that_cannot_be_read_any_more_is_not_scaled_to_zero() -> None:
    """A value that is served again and again, with the time of each pass, would count as measured twice."""
    objects = (
        (DEPLOYMENTS, deployment(slots="4", idle_seconds="60")),
        (AUTOSCALERS, autoscaler()),
        (PODS, model_pod("llm-1")),
    )
    async with scene(*objects) as one:
        while True:
            await one.reconcile(triton(ended=100))
            with contextlib.suppress(MetricAbsent):
                if await one.replicas() == 0:
                    break
            assert one.now_s < 2400, "it is idle after a minute"
        for _ in range(4):
            await one.reconcile(DOWN)
            with pytest.raises(MetricAbsent, match="no answer in 5 s; the replicas do not change"):
                await one.replicas()


class Queue:
    """What waits in front of servers, or that nobody says."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[str, str], float] = {}
        self.trouble: Unavailable | None = None
        self.bad = ""
        self.queries = 0

    async def read(self) -> PendingRequests:
        self.queries += 1
        if self.trouble:
            raise self.trouble
        return PendingRequests(self.waiting, self.bad)


async def test_what_waits_in_front_of_a_server_without_a_replica_brings_one_back() -> None:
    one, queue, measures = Scene(), Queue(), Measures()
    one.servers = ModelServerAutoscaler(
        one.kube, one.scraped(), logger(), queues=queue, measures=measures, now_s=lambda: one.now_s
    )
    objects = ((DEPLOYMENTS, deployment(replicas=0, slots="4", idle_seconds="600")), (AUTOSCALERS, autoscaler()))
    async with scene(*objects, one=one):
        queue.waiting = {("ns", "another"): 3.0, ("elsewhere", "llm"): 3.0}
        await one.reconcile()
        assert await one.replicas() == 0
        queue.trouble = DOWN
        with capture_logs() as logs:
            await one.reconcile()
        assert [each["event"] for each in logs if each["log_level"] != "debug"] == ["model_servers_not_followed"]
        assert await one.replicas() == 0
        queue.trouble, queue.waiting, queue.bad = None, {("ns", "llm"): 0.5}, "1 of 2 series lack namespace"
        with capture_logs() as logs:
            await one.reconcile()
        assert await one.replicas() == 1
        reasons = " ".join(each["reason"] for each in logs if each["event"] == "model_servers_not_followed")
        assert reasons == (
            "--wake-query: 1 of 2 series lack namespace: write it as `sum by (namespace, service) (...)`"
        )
        await one.kube.patch(DEPLOYMENTS, "llm", {"spec": {"replicas": 1}}, namespace="ns")
        await turns()
        queries = queue.queries
        await one.reconcile()
        assert queue.queries == queries, "no query about servers that have a replica"
    exposed = measures.render().decode()
    for result, count in (("done", queries - 1), ("failed", 1)):
        assert f'tessera_metrics_wake_queries_total{{result="{result}"}} {count}' in exposed


async def test_a_failed_wake_up_query_is_the_reason_for_zero() -> None:
    one, queue = Scene(), Queue()
    queue.trouble = DOWN
    one.servers = ModelServerAutoscaler(one.kube, one.scraped(), logger(), queues=queue, now_s=lambda: one.now_s)
    objects = ((DEPLOYMENTS, deployment(replicas=0, slots="4", idle_seconds="600")), (AUTOSCALERS, autoscaler()))
    async with scene(*objects, one=one):
        assert await one.replicas() == 0
        assert await one.events() == [
            ("ReplicasProposed", "0 replicas: the wake-up query failed, and nothing else woke it")
        ]


class Repeated:
    """Samples of pods that count since long ago, the same at each look."""

    async def read(self, pods: Mapping[PodName, ModelPod]) -> dict[PodName, Counters | Unmeasured]:
        once = Counters(at_s=2000.0, started_s=0.0, queued_s=1.0, dequeued=9.0, served_s=2.0, completed=9.0)
        return dict.fromkeys(pods, once)


async def test_one_bad_pod_of_two_is_taken_to_be_as_the_other() -> None:
    """Ten wait in each of two: what one of them has is no less while it is not read, and more than what is read."""
    desired = list[float]()
    for waits, other in ((10, None), (10, DOWN), (5, None)):
        async with scene((DEPLOYMENTS, deployment(slots="4", replicas=2)), *WHOLE[1:]) as one:
            for number in range(3):
                await one.reconcile(*(triton(ended=100 + number) for _ in range(2)))
            busy = triton(ended=103, waiting=waits)
            await one.reconcile(busy, other or busy)
            desired.append(await one.replicas())
            if other:
                assert set(await one.pods()) == {"llm-1"}
                with pytest.raises(MetricAbsent, match="llm-2: no answer in 5 s"):
                    await one.pods(name="llm-2")
    assert desired[0] == desired[1] > desired[2]


async def test_a_pod_for_which_there_was_no_time_says_so() -> None:
    class Hanging(MemoryMetrics):
        async def get(self, url: str) -> bytes:
            if "10.0.0.1" in url:
                raise TimeoutError  # as when the time for all is over
            return await super().get(url)

    one = Scene()
    one.exposed = Hanging()
    one.servers = ModelServerAutoscaler(one.kube, one.scraped(), logger(), now_s=lambda: one.now_s)
    async with scene(*WHOLE, one=one):
        for number in range(2):
            await one.reconcile(b"", triton(ended=100 + number))
        with pytest.raises(MetricAbsent, match="not scraped within 12 s, because other pods did not answer"):
            await one.pods(name="llm-1")
        assert await one.pods() == {"llm-2": 0.0}


def owned(each: dict[str, Any], **changed: Any) -> dict[str, Any]:
    owner = {"apiVersion": "tessera.dev/v1alpha1", "kind": "ModelServer", "name": "llm", "uid": "u", "controller": True}
    return {**each, "metadata": {**each["metadata"], "ownerReferences": [owner | changed]}}


def another(name: str) -> dict[str, Any]:
    """Return a Deployment of another name with the label of the server."""
    each = deployment(name, slots="4", replicas=3)
    each["metadata"]["labels"] = {SERVER: "llm"}
    return each


async def test_of_several_deployments_with_the_label_the_model_servers_own_counts() -> None:
    objects = (
        (DEPLOYMENTS, another("aaa")),
        (DEPLOYMENTS, owned(deployment(slots="4"))),
        (DEPLOYMENTS, another("zzz")),
    )
    async with scene(*objects, *WHOLE[1:]) as one:
        for number in range(3):
            await one.reconcile(triton(ended=100 + number), triton(ended=100 + number))
        assert await one.replicas() == 1


async def test_a_decision_is_an_event_of_the_deployment_and_of_its_model_server() -> None:
    """Each has events of its own: they have the same name."""
    async with scene((DEPLOYMENTS, owned(deployment(slots="4"), uid="u1")), *WHOLE[1:]) as one:
        for number in range(3):
            await one.reconcile(triton(ended=100 + number), triton(ended=100 + number))
        events = (await one.kube.list(EVENTS)).objects
        about = {(each["involvedObject"]["kind"], each["involvedObject"]["name"]): each for each in events}
        assert about.keys() == {("Deployment", "llm"), ("ModelServer", "llm")}
        assert about["ModelServer", "llm"]["involvedObject"]["uid"] == "u1"
        (message,) = {each["message"] for each in events}
        assert message.startswith("1 replica: ")
    async with scene(*WHOLE) as one:
        await one.reconcile(triton(ended=100), triton(ended=100))
        await one.reconcile(triton(ended=100), triton(ended=100))
        kinds = {each["involvedObject"]["kind"] for each in (await one.kube.list(EVENTS)).objects}
        assert kinds == {"Deployment"}


async def test_an_event_that_could_not_be_written_is_written_later_and_about_each_object_by_itself() -> None:
    async def about(one: Scene) -> list[str]:
        await one.reconcile(triton(ended=100), triton(ended=100))
        return sorted(each["involvedObject"]["kind"] for each in (await one.kube.list(EVENTS)).objects)

    async with scene((DEPLOYMENTS, owned(deployment(slots="4"), uid="u1")), *WHOLE[1:]) as one:
        one.kube.lose_answers(1)
        assert [await about(one) for _ in range(3)][1:] == [["Deployment", "ModelServer"]] * 2
    async with scene((DEPLOYMENTS, owned(deployment(slots="4"), uid="u1")), *WHOLE[1:]) as one:
        one.kube.withhold("ns", EVENTS)
        for _ in range(3):
            await one.reconcile(triton(ended=100), triton(ended=100))
        one.kube.withhold("ns")
        await turns()
        assert await about(one) == ["Deployment", "ModelServer"]


@pytest.mark.parametrize(
    "changed", [{"name": "another"}, {"kind": "ReplicaSet"}, {"apiVersion": "apps/v1"}, {"controller": False}]
)
async def test_of_several_deployments_of_no_model_server_the_first_is_named(changed: dict[str, Any]) -> None:
    objects = ((DEPLOYMENTS, another("aaa")), (DEPLOYMENTS, owned(deployment(slots="4"), **changed)))
    async with scene(*objects, *WHOLE[1:]) as one:
        await one.reconcile(triton(ended=100), triton(ended=100))
        with pytest.raises(MetricAbsent, match="llm: no HorizontalPodAutoscaler targets Deployment aaa, so"):
            await one.replicas()


async def test_of_several_autoscalers_of_a_deployment_the_first_of_its_namespace_counts() -> None:
    elsewhere = autoscaler(max_replicas=1)
    elsewhere["metadata"] |= {"name": "aaa", "namespace": "elsewhere"}
    second, other = autoscaler(min_replicas=7, max_replicas=9), autoscaler("other", max_replicas=2)
    second["metadata"] |= {"name": "zzz"}
    other["metadata"] |= {"name": "bbb"}
    objects = ((AUTOSCALERS, elsewhere), (AUTOSCALERS, second), (AUTOSCALERS, other), *WHOLE[2:])
    first = autoscaler(min_replicas=3, max_replicas=5)
    async with scene((DEPLOYMENTS, deployment(slots="4")), (AUTOSCALERS, first), *objects) as one:
        for number in range(3):
            await one.reconcile(triton(ended=100 + number), triton(ended=100 + number))
        assert await one.replicas() == 3


NOTHING: dict[str, tuple[tuple[tuple[Any, dict[str, Any]], ...], str]] = {
    "no server": ((), "no such server: check the pods with the label serving.tessera.dev/server"),
    "no autoscaler": (WHOLE[:1] + WHOLE[2:], "no HorizontalPodAutoscaler targets Deployment llm,"),
    "no slots": (((DEPLOYMENTS, deployment()), *WHOLE[1:]), "annotate Deployment llm with serving.tessera.dev/slots"),
    "slots that are none": (
        ((DEPLOYMENTS, deployment(slots="8 per GPU")), *WHOLE[1:]),
        "annotation serving.tessera.dev/slots: '8 per GPU' is not a whole number",
    ),
    "no pod": (WHOLE[:2], "it has no running pod"),
}


@pytest.mark.parametrize("case", NOTHING)
async def test_without_a_decision_there_is_a_reason(case: str) -> None:
    objects, want = NOTHING[case]
    async with scene(*objects) as one:
        await one.reconcile(triton(ended=1), triton(ended=1))
        with pytest.raises(MetricAbsent) as caught:
            await one.replicas()
        assert want in str(caught.value)


@pytest.mark.parametrize("metric", ["tessera_replicas", "other"])
async def test_unknown_slots_are_an_event_where_an_autoscaler_uses_the_decision(metric: str) -> None:
    asking = autoscaler()
    asking["spec"]["metrics"] = [{"type": "External", "external": {"metric": {"name": metric}}}, {"type": "Pods"}]
    async with scene((DEPLOYMENTS, deployment()), (AUTOSCALERS, asking), *WHOLE[2:]) as one:
        for _ in range(3):
            await one.reconcile(triton(ended=1), triton(ended=1))
        bad = [message for reason, message in await one.events() if reason == "ScalingInputBad"]
        assert len(bad) == (metric == "tessera_replicas")
        assert all("annotate Deployment llm with serving.tessera.dev/slots" in each for each in bad)


@pytest.mark.parametrize(("server", "want"), [(deployment(slots="4"), False), (TO_ZERO["by the annotation"][0], True)])
async def test_decisions_that_nothing_uses_are_no_events(server: dict[str, Any], *, want: bool) -> None:
    """But for scaling to zero, which Tessera does itself, whatever else its autoscaler scales by."""
    async with scene((DEPLOYMENTS, server), (AUTOSCALERS, autoscaler(metric="other")), *WHOLE[2:]) as one:
        for number in range(3):
            await one.reconcile(triton(ended=number), triton(ended=number))
        assert await one.replicas() == 1, "whoever asks for it gets it"
        await one.reconcile(DOWN, DOWN, seconds=400)
        reasons = {reason for reason, _ in await one.events()}
        assert reasons == ({"ReplicasProposed", "ScalingInputBad"} if want else set())


async def test_the_cold_start_is_that_of_the_first_readiness() -> None:
    """A pod that was unready for a moment, hours after it started, did not start for hours."""
    async with scene(*WHOLE) as one:
        for ready, moment in (("False", "1970-01-01T05:00:00Z"), ("True", "1970-01-01T05:00:30Z")):
            await one.reconcile(triton(ended=100), triton(ended=100))
            for name in ("llm-1", "llm-2"):
                status = model_pod(name)["status"]
                status["conditions"][1] |= {"status": ready, "lastTransitionTime": moment}
                await one.kube.patch(PODS, name, {"status": status}, namespace="ns")
            await turns()
        for number in range(1, 41):
            content = triton(ended=100 + number, queued_s=9.0 * number, served_s=30.0 * number, waiting=20)
            await one.reconcile(content, content)
        assert "requests in flight in 90 s" in (await one.events())[-1][1]


async def test_a_server_without_its_pods_is_forgotten() -> None:
    async with scene(*WHOLE) as one:
        await one.reconcile(triton(ended=1), triton(ended=1))
        for kind, each in WHOLE:
            await one.kube.delete(kind, each["metadata"]["name"], namespace="ns")
        await turns()
        await one.reconcile()
        with pytest.raises(MetricAbsent, match="no such server"):
            await one.replicas()


async def test_malformed_objects_are_ignored() -> None:
    broken = model_pod("llm-3")
    broken["spec"] = {"containers": "none"}
    wild = {**deployment("wild"), "spec": 3}
    async with scene(*WHOLE, (PODS, broken), (DEPLOYMENTS, wild)) as one:
        for number in range(3):
            await one.reconcile(triton(ended=100 + number), triton(ended=100 + number))
        assert set(await one.pods()) == {"llm-1", "llm-2"}
