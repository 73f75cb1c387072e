"""A Job is followed from its submission to its end, whatever becomes of it."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from builders.usagereports import BUSY
from harness import virtualtime
from harness.submittedjob import RUNS, SubmittedJob, said
from tessera.api.kubernetes.jobs import JobRequest, job_object
from tessera.api.kubernetes.jobstates import JobState
from tessera.api.tessera.usage.usagejson import write_usage
from tessera.cli.work.follow.following import follow_job, print_log
from tessera.cli.work.jobreading import state_of
from tessera.clients.kube import (
    EVENTS,
    EVERYTHING,
    JOBS,
    PODS,
    WORKLOADS,
    Kind,
    Listing,
    MemoryKube,
    Selection,
    Silent,
    WatchEvent,
    uid_of,
)
from tessera.core.usage.usagereport import DeviceReport, GpuReport, UsageReport
from tessera.errors import Conflict, Unavailable

PENDING = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no GPU has room"}]}


@pytest.mark.anyio
async def test_a_job_is_followed_to_the_end_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    await one.submit()
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "j: Pending")
    await one.pod(PENDING)
    await said(capsys, "j: Pending: no GPU has room")
    one.kube.written["ns", "j-1"] = [b"epoch 1\n"]
    await one.pod(RUNS, "n")
    await said(capsys, "epoch 1")
    one.kube.written["ns", "j-1"].append(b"epoch 2\n")
    await said(capsys, "epoch 2")
    await one.ends(3)
    assert await task == 3
    assert "j: Failed on n: its command ended with 3" in "".join(capsys.readouterr())
    await print_log(one.kube, await state_of(one.kube, "j", "ns"))
    assert capsys.readouterr().out == "epoch 1\nepoch 2\n"


@pytest.mark.anyio
@pytest.mark.parametrize("limits", [{"tessera.dev/gpu-memory": "8"}, {"models.tessera.dev/llama": "1"}, {}])
async def test_gpu_usage_is_followed_of_a_job_that_asks_for_gpus(
    limits: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    one = SubmittedJob()
    await one.kube.create(JOBS, job_object(JobRequest(name="j", namespace="ns", image="a", limits=limits)))
    agent = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "agent"}
    metadata = {"name": "agent", "namespace": "tessera-system", "labels": agent}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    await one.kube.create(PODS, {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})
    device = DeviceReport(containers=(msgspec.structs.replace(BUSY, namespace="ns", pod="j-1"),))
    report = UsageReport(node="n", gpus=(GpuReport(index=3, devices=(device,)),))
    one.kube.answers["tessera-system", "agent"] = {(9400, "usage"): write_usage(report)}
    await one.pod(RUNS, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    if "tessera.dev/gpu-memory" in limits:
        await said(capsys, "j: uses GPU 3: 7.9 GiB of 8 GiB, 90 % busy\n")
    await one.ends(0)
    assert await task == 0
    assert "uses" not in "".join(capsys.readouterr())


@pytest.mark.anyio
async def test_a_job_without_a_pod_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    await one.submit()
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "j: Pending")
    job = await one.kube.get(JOBS, "j", "ns")
    assert job is not None
    for number, (kind, uid, message) in enumerate(
        (
            ("Warning", uid_of(job), "exceeded quota: gpus"),
            ("Warning", "former", "old"),
            ("Normal", uid_of(job), "fine"),
        )
    ):
        about = {"kind": "Job", "name": "j", "namespace": "ns", "uid": uid}
        body = {"metadata": {"name": f"e{number}", "namespace": "ns"}, "involvedObject": about}
        await one.kube.create(EVENTS, body | {"type": kind, "message": message, "lastTimestamp": f"2026-0{number + 1}"})
    await said(capsys, "j: Pending: exceeded quota: gpus\n")
    for number in (7, 8):  # the controller tries again and again, each time with another name
        message = f'Error creating: pods "j-{number}x2kp" is forbidden: exceeded quota: memory'
        patch = {"message": message, "lastTimestamp": f"2026-0{number}"}
        await one.kube.patch(EVENTS, "e0", patch, namespace="ns")
        if number == 7:
            await said(capsys, "j: Pending: its pod is forbidden: exceeded quota: memory\n")
    assert (await state_of(one.kube, "j", "ns")).reason == "its pod is forbidden: exceeded quota: memory"
    await one.kube.patch(EVENTS, "e0", {"message": "exceeded quota: gpus"}, namespace="ns")
    assert "memory" not in await said(capsys, "j: Pending: exceeded quota: gpus\n")
    assert (await state_of(one.kube, "j", "ns")).reason == "exceeded quota: gpus"
    await one.pod(RUNS, "n")
    await said(capsys, "j: Running on n")
    await one.ends(0)
    assert await task == 0


@pytest.mark.anyio
async def test_a_job_in_a_queue_says_why_and_goes_on_when_it_is_admitted(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    uid = await one.submit(queue="team")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "j: Queued: pending in queue team\n")
    condition = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota"}
    metadata = {"name": "job-j", "namespace": "ns", "labels": {"kueue.x-k8s.io/job-uid": uid}}
    await one.kube.create(WORKLOADS, {"metadata": metadata})
    status = {"status": {"conditions": [condition]}}
    await one.kube.patch(WORKLOADS, "job-j", status, namespace="ns", subresource="status")
    await said(capsys, "j: Queued: pending in queue team: insufficient unused quota\n")
    assert (await state_of(one.kube, "j", "ns")).reason == "pending in queue team: insufficient unused quota"
    await one.kube.patch(JOBS, "j", {"spec": {"suspend": False}}, namespace="ns")
    await one.pod(RUNS, "n")
    await said(capsys, "j: Running on n")
    await one.ends(0)
    assert await task == 0


@pytest.mark.anyio
@pytest.mark.parametrize("lacks", ["Kueue", "rights"])
async def test_a_queue_that_cannot_be_read_holds_nothing_up(lacks: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    if lacks == "Kueue":
        one.kube.uninstall(WORKLOADS)
    else:
        one.kube.withhold("ns", WORKLOADS)
    await one.submit(queue="team")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    printed = await said(capsys, "install Kueue 0.15 or newer" if lacks == "Kueue" else "pending in queue team\n")
    assert ("retrying:" in printed) == (lacks == "Kueue")
    assert (await state_of(one.kube, "j", "ns")).reason == "pending in queue team"
    await one.kube.patch(JOBS, "j", {"spec": {"suspend": False}}, namespace="ns")
    await one.pod(RUNS, "n")
    await one.ends(0)
    assert await task == 0


@pytest.mark.anyio
async def test_who_may_not_read_events_follows_a_job_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    one.kube.withhold("ns", EVENTS)
    await one.submit()
    await one.pod(RUNS, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    assert "retrying" not in await said(capsys, "j: Running on n")
    await one.ends(4)
    assert await task == 4
    assert (await state_of(one.kube, "j", "ns")).exit_code == 4


@pytest.mark.anyio
async def test_what_others_wrote_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    await one.submit()
    waiting = {"reason": "ErrImagePull", "message": "no \x1b]0;owned\x07such\u202eimage"}
    state = {"containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]}
    await one.pod(state, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    assert "ErrImagePull: no \ufffd]0;owned\ufffdsuch\ufffdimage" in await said(capsys, "ErrImagePull")
    await one.ends(1)
    assert await task == 1


@pytest.mark.anyio
async def test_a_job_that_ends_without_its_command_is_distinguished_from_one_that_was_deleted() -> None:
    one = SubmittedJob()
    await one.submit()
    await one.pod({"phase": "Failed", "reason": "Evicted"}, "n")
    with pytest.raises(Conflict, match="Evicted"):
        await follow_job(one.kube, "j", "ns")
    await one.kube.delete(JOBS, "j", namespace="ns")
    with pytest.raises(Conflict, match="it was deleted"):
        await follow_job(one.kube, "j", "ns")


@pytest.mark.anyio
async def test_of_a_pod_with_an_added_container_the_commands_counts(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    await one.submit()
    one.kube.written["ns", "j-1"] = [b"epoch 1\n"]
    added = {"name": "istio-proxy", "state": {"running": {}}}
    states = [added, {"name": "main", "state": {"running": {}}}]
    await one.pod({"phase": "Running", "containerStatuses": states}, "n", containers=("istio-proxy", "main"))
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    assert "interrupted" not in await said(capsys, "epoch 1")
    states = [added, {"name": "main", "state": {"terminated": {"exitCode": 7}}}]
    await one.pod({"phase": "Failed", "containerStatuses": states}, "n")
    assert await task == 7


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["Complete", "Failed"])
async def test_a_job_of_several_parts_is_followed_to_the_end_of_all(
    end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = SubmittedJob()
    await one.submit()
    await one.kube.patch(JOBS, "j", {"spec": {"completions": 3, "backoffLimitPerIndex": 3}}, namespace="ns")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await one.pod(RUNS, "n")
    await said(capsys, "j: Running on n: 0 of 3 parts done")
    await one.ends(0)
    await one.counts({"succeeded": 1})
    await said(capsys, "1 of 3 parts done")
    await one.pod(RUNS, "n", name="j-2")
    await one.ends(1, name="j-2")
    conditions = [{"type": end, "status": "True"}]
    await one.counts({"succeeded": 3 if end == "Complete" else 2, "conditions": conditions})
    if end == "Complete":
        assert await task == 0
        assert "j: Succeeded on n: 3 of 3 parts done" in capsys.readouterr().err
    else:
        with pytest.raises(Conflict, match="job ns/j: 2 of 3 parts done: see `tessera logs j -n ns`"):
            await task


class SilentLogs(MemoryKube):
    """An API that gives no logs."""

    async def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        async for piece in super().logs(name, namespace, container=container, since=since):
            yield piece
        raise Unavailable(f"log of {namespace}/{name}", found="cut", expected=f"follow={follow}")


@pytest.mark.anyio
async def test_a_job_that_is_preempted_is_followed_in_its_second_pod(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    await one.submit(queue="team")
    one.kube.written["ns", "j-1"], one.kube.written["ns", "j-2"] = [b"epoch 1\n"], [b"epoch 2\n"]
    await one.suspend(suspended=False)
    await one.pod(RUNS, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "epoch 1")
    await one.is_preempted(capsys)
    await said(capsys, "epoch 2")
    await one.ends(3, name="j-2")
    assert await task == 3


class SlowLogs(MemoryKube):
    """An API that gives a log that is long."""

    async def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        async for piece in super().logs(name, namespace, container=container, since=since):
            yield piece
            await asyncio.sleep(5 if follow else 0)


async def followed_after_its_end(kube: MemoryKube) -> int:
    """Follow a Job that has ended with 2, and whose log has eight lines."""
    one = SubmittedJob(kube)
    await one.submit()
    one.kube.written["ns", "j-1"] = [b"part %d\n" % number for number in range(8)]
    await one.ends(2)
    return await follow_job(one.kube, "j", "ns")


def test_a_long_log_is_printed_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """It takes longer than a log may be silent."""
    assert virtualtime.run(followed_after_its_end(SlowLogs())) == 2
    printed = capsys.readouterr()
    assert "part 7" in printed.out
    assert "did not arrive" not in printed.err


class EndlessLogs(MemoryKube):
    """An API whose logs never end."""

    async def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        async for piece in super().logs(name, namespace, container=container, since=since):
            yield piece
        if follow:
            await asyncio.Event().wait()


def test_a_log_that_does_not_end_with_the_job_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert virtualtime.run(followed_after_its_end(EndlessLogs())) == 2
    printed = capsys.readouterr()
    assert "part 7" in printed.out
    assert "the end of the log did not arrive; `tessera logs j -n ns` prints what its node has of it" in printed.err


class EndlessFirstLog(MemoryKube):
    """An API whose log of the first pod does not end: its node is lost."""

    async def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        async for piece in super().logs(name, namespace, container=container, since=since):
            yield piece
        if follow and name == "j-1":
            await asyncio.Event().wait()


async def admitted_twice(kube: MemoryKube) -> tuple[SubmittedJob, asyncio.Task[int]]:
    """Return a followed Job that was preempted, whose second pod has just started."""
    one = SubmittedJob(kube)
    await one.submit(queue="team")
    one.kube.written["ns", "j-1"] = [b"part %d\n" % number for number in range(8)]
    one.kube.written["ns", "j-2"] = [b"second\n"]
    await one.suspend(suspended=False)
    await one.pod(RUNS, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await asyncio.sleep(7)
    await one.suspend()
    await one.kube.delete(PODS, "j-1", namespace="ns")
    await one.suspend(suspended=False)
    await one.pod(RUNS, "n", name="j-2")
    return one, task


@pytest.mark.parametrize("ends_early", [False, True])
def test_the_log_of_a_second_pod_is_not_held_up_by_that_of_the_first(
    *, ends_early: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def followed() -> int:
        one, task = await admitted_twice(EndlessFirstLog())
        await asyncio.sleep(1 if ends_early else 3600)
        early = capsys.readouterr()
        assert ("second" in early.out) == (not ends_early)
        await one.ends(3, name="j-2")
        code = await task
        printed = capsys.readouterr()
        assert (early.out + printed.out).endswith("part 7\nsecond\n")
        assert "the end of the log did not arrive; the Job has a pod after j-1\n" in early.err + printed.err
        return code

    assert virtualtime.run(followed()) == 3


def test_the_log_of_the_first_pod_is_printed_to_its_end_before_that_of_the_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It takes longer than a log may be silent."""

    async def followed() -> int:
        one, task = await admitted_twice(SlowLogs())
        await one.ends(3, name="j-2")
        return await task

    assert virtualtime.run(followed()) == 3
    printed = capsys.readouterr()
    assert printed.out == "".join(f"part {number}\n" for number in range(8)) + "second\n"
    assert "did not arrive" not in printed.err


def test_of_parts_that_run_at_once_the_log_of_the_first_is_followed_however_silent_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def followed() -> int:
        one = SubmittedJob(MemoryKube(asyncio.get_running_loop().time))
        await one.submit()
        await one.kube.patch(JOBS, "j", {"spec": {"completions": 2, "parallelism": 2}}, namespace="ns")
        one.kube.written["ns", "j-1"], one.kube.written["ns", "j-2"] = [b"early\n"], [b"second\n"]
        await one.pod(RUNS, "n")
        task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
        await asyncio.sleep(7)
        await one.pod(RUNS, "n", name="j-2")
        await asyncio.sleep(60)
        one.kube.written["ns", "j-1"].append(b"late\n")
        await asyncio.sleep(60)
        for name in ("j-1", "j-2"):
            await one.ends(0, name=name)
        await one.counts({"succeeded": 2, "conditions": [{"type": "Complete", "status": "True"}]})
        return await task

    assert virtualtime.run(followed()) == 0
    assert capsys.readouterr().out == "early\nlate\nsecond\n"


class ShortLogs(MemoryKube):
    """An API whose streams of logs end early, in the midst of a line, or break off."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = 0

    async def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        self.streams += 1
        written = self.written[namespace, name]
        self.written[namespace, name] = [b"".join(written)[: 40 * self.streams]]
        async for piece in super().logs(name, namespace, container=container, since=since):
            yield piece
        self.written[namespace, name] = written
        if self.streams % 2:
            raise Unavailable(f"log of {namespace}/{name}", found="cut", expected=f"follow={follow}")


def test_a_log_whose_stream_ends_early_is_read_on_and_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(f"part {number}: {number * '.'}\n" for number in range(12))
    api = ShortLogs()

    async def followed() -> int:
        one = SubmittedJob(api)
        await one.submit()
        one.kube.written["ns", "j-1"] = [lines.encode()]
        await one.pod(RUNS, "n")
        task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
        await asyncio.sleep(60)
        await one.ends(0)
        return await task

    assert virtualtime.run(followed()) == 0
    printed = capsys.readouterr()
    assert printed.out == lines
    assert api.streams > 4
    assert printed.err.count("the log was interrupted") == 1
    assert "reading on" in printed.err


@pytest.mark.anyio
async def test_the_log_of_a_job_that_was_evicted_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    await one.submit()
    one.kube.written["ns", "j-1"] = [b"epoch 1\n"]
    killed = {"name": "main", "state": {"terminated": {"exitCode": 137}}}
    await one.pod({"phase": "Failed", "reason": "Evicted", "containerStatuses": [killed]}, "n")
    with pytest.raises(Conflict, match="Evicted"):
        await follow_job(one.kube, "j", "ns")
    assert capsys.readouterr().out == "epoch 1\n"


@pytest.mark.anyio
async def test_a_log_that_breaks_off_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob(SilentLogs())
    await one.submit()
    await one.pod(RUNS, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "reading on")
    await one.ends(0)
    assert await task == 0
    assert "`tessera logs j -n ns` prints what its node has of it" in capsys.readouterr().err


class Restored(MemoryKube):
    """An API whose etcd is restored from a backup of before the first watch of its Jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.is_restored = False

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        found = await super().list(kind, selection)
        return msgspec.structs.replace(found, resource_version="0") if self.is_restored and kind is JOBS else found

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        if kind is JOBS:
            self.is_restored = True
            raise Silent("watch jobs", found="it is silent", hint="list again")
        async for each in super().watch(kind, since, selection):
            yield each


@pytest.mark.anyio
async def test_a_job_that_can_no_longer_be_observed_is_not_followed_for_ever() -> None:
    one = SubmittedJob(Restored())
    await one.submit()
    await one.pod(RUNS, "n")
    async with asyncio.timeout(20):
        with pytest.raises(Conflict, match=r"restore of etcd from a backup: `tessera attach j -n ns` follows the job"):
            await follow_job(one.kube, "j", "ns")


@pytest.mark.anyio
async def test_an_interruption_is_not_lost_while_the_connection_to_a_former_pod_is_closed() -> None:
    one = SubmittedJob()
    await one.submit()
    opened, closing = asyncio.Event(), asyncio.Event()

    async def meanwhile(_: JobState) -> None:
        opened.set()
        try:
            await asyncio.Event().wait()
        finally:
            closing.set()
            await asyncio.sleep(0.2)  # as the handshake that closes a WebSocket whose other end is away

    task = asyncio.create_task(follow_job(one.kube, "j", "ns", meanwhile))
    await one.pod(RUNS, "n")
    async with asyncio.timeout(20):
        await opened.wait()
        await one.kube.delete(PODS, "j-1", namespace="ns")
        await one.pod(RUNS, "n", name="j-2")
        await closing.wait()
    task.cancel()
    ended, _ = await asyncio.wait((task,), timeout=20)
    task.cancel()
    assert ended == {task}
    assert task.cancelled()
