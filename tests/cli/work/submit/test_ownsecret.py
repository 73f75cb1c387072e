"""A Job and its own Secret, wherever their submission ends: no pod waits for ever, and no Secret is left."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.commandline import called, running
from harness.kubeapi import KubeApi, serving
from tessera.api.kubernetes.jobs import BEGUN, JobRequest, job_object, own_secret
from tessera.cli.work.stop import stop_jobs
from tessera.cli.work.submit.ownsecret import create_job
from tessera.clients.kube import (
    JOBS,
    SECRETS,
    Kind,
    MemoryKube,
    Object,
    Selection,
    Unanswered,
    name_of,
    uid_of,
)
from tessera.errors import Conflict, TesseraError, Unavailable

pytestmark = pytest.mark.anyio

FILES = {"code.tar.gz": b"x"}
IN_NS = Selection(namespace="ns")


def asked(name: str) -> JobRequest:
    return JobRequest(name=name, namespace="ns", image="a", own_secret=f"{name}-own", code=True)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def owners(kube: MemoryKube) -> dict[str, list[str]]:
    """Return which Secrets there are, each with the names of its owners."""
    found = (await kube.list(SECRETS, IN_NS)).objects
    return {
        name_of(each)[1]: [owner["name"] for owner in each["metadata"].get("ownerReferences", ())] for each in found
    }


async def jobs(kube: MemoryKube) -> list[str]:
    return [name_of(each)[1] for each in (await kube.list(JOBS, IN_NS)).objects]


async def test_the_secret_is_there_before_the_job_and_is_the_jobs() -> None:
    kube, order = MemoryKube(), list[str]()

    class Noting(MemoryKube):
        async def create(self, kind: Kind, body: Object) -> Object:
            order.append(kind.name)
            return await super().create(kind, body)

    kube = Noting()
    assert name_of(await create_job(kube, asked("j"), FILES)) == ("ns", "j")
    assert order == ["Secret", "Job"]
    job, secret = await kube.get(JOBS, "j", "ns"), await kube.get(SECRETS, "j-own", "ns")
    assert job is not None
    assert secret is not None
    assert [each["uid"] for each in secret["metadata"]["ownerReferences"]] == [uid_of(job)]
    assert not (await kube.list(SECRETS, Selection(namespace="ns", labels=BEGUN))).objects


class Refusing(MemoryKube):
    """An API that refuses one kind of request."""

    def __init__(self, method: str, kind: Kind, error: TesseraError) -> None:
        super().__init__()
        self._refused = (method, kind, error)

    def _meet(self, method: str, kind: Kind) -> None:
        if (method, kind) == self._refused[:2]:
            raise self._refused[2]

    async def create(self, kind: Kind, body: Object) -> Object:
        self._meet("create", kind)
        return await super().create(kind, body)

    async def patch(self, kind: Kind, name: str, body: Object, **more: Any) -> Object:
        self._meet("patch", kind)
        return await super().patch(kind, name, body, **more)


NO_ROOM = Unavailable("it", found="quota exceeded", expected="room for one more")


@pytest.mark.parametrize(("method", "kind"), [("create", SECRETS), ("create", JOBS), ("patch", SECRETS)])
async def test_what_is_refused_leaves_neither(method: str, kind: Kind) -> None:
    kube = Refusing(method, kind, NO_ROOM)
    with pytest.raises(Unavailable, match="quota exceeded"):
        await create_job(kube, asked("j"), FILES)
    assert (await jobs(kube), await owners(kube)) == ([], {})


async def test_a_job_that_may_be_there_keeps_its_secret() -> None:
    """The API server has made it, and its answer was lost."""

    class Losing(MemoryKube):
        async def create(self, kind: Kind, body: Object) -> Object:
            if kind == JOBS:
                self.lose_answers(1)
            return await super().create(kind, body)

    kube = Losing()
    with pytest.raises(Unanswered):
        await create_job(kube, asked("j"), FILES)
    assert (await jobs(kube), await owners(kube)) == (["j"], {"j-own": []})
    await stop_jobs(kube, ("j",), "ns")
    assert await owners(kube) == {"j-own": ["j"]}, "deleted with the Job now"


async def test_a_secret_that_was_taken_away_meanwhile_ends_its_job() -> None:
    class Taking(MemoryKube):
        async def create(self, kind: Kind, body: Object) -> Object:
            if kind == JOBS:
                await self.delete(SECRETS, "j-own", namespace="ns")
            return await super().create(kind, body)

    kube = Taking()
    with pytest.raises(Conflict):
        await create_job(kube, asked("j"), FILES)
    assert (await jobs(kube), await owners(kube)) == ([], {})


async def test_anothers_job_that_took_the_name_meanwhile_stays() -> None:
    class Taking(MemoryKube):
        async def patch(self, kind: Kind, name: str, body: Object, **more: Any) -> Object:
            if kind == SECRETS:
                await self.delete(JOBS, "j", namespace="ns")
                await self.create(JOBS, job_object(asked("j")))
                raise Conflict("Secret ns/j-own", found="it changed", hint="read it again")
            return await super().patch(kind, name, body, **more)

    kube = Taking()
    with pytest.raises(Conflict, match="it changed"):
        await create_job(kube, asked("j"), FILES)
    assert (await jobs(kube), await owners(kube)) == (["j"], {})


AWAY = Unavailable("API server", found="connection refused", hint="try again")


async def test_a_secret_that_could_not_be_given_to_its_job_is_given_by_the_next_submission() -> None:
    class Away(MemoryKube):
        away = True

        async def patch(self, kind: Kind, name: str, body: Object, **more: Any) -> Object:
            if kind == SECRETS and self.away:
                raise AWAY
            return await super().patch(kind, name, body, **more)

        async def delete(self, kind: Kind, name: str, **more: Any) -> None:
            if self.away:
                raise AWAY
            await super().delete(kind, name, **more)

    kube = Away()
    assert name_of(await create_job(kube, asked("j"), FILES)) == ("ns", "j")
    assert (await jobs(kube), await owners(kube)) == (["j"], {"j-own": []})
    kube.away = False
    await create_job(kube, asked("next"), FILES)
    assert await owners(kube) == {"j-own": ["j"], "next-own": ["next"]}


async def test_secrets_that_are_left_go_and_those_that_are_needed_or_young_stay() -> None:
    clock = Clock()
    kube = MemoryKube(clock)
    for name, begun in (("left", True), ("needed", True), ("by-hand", False)):
        await kube.create(SECRETS, own_secret(asked(name), FILES, begun=begun))
    await kube.create(JOBS, job_object(asked("needed")))
    clock.now += 601
    await kube.create(SECRETS, own_secret(asked("under-way"), FILES, begun=True))
    await create_job(kube, asked("next"), FILES)
    unowned = {"by-hand-own": list[str](), "under-way-own": list[str]()}
    assert await owners(kube) == unowned | {"needed-own": ["needed"], "next-own": ["next"]}
    job = await kube.get(JOBS, "needed", "ns")
    secret = await kube.get(SECRETS, "needed-own", "ns")
    assert job is not None
    assert secret is not None
    assert secret["metadata"]["ownerReferences"][0]["uid"] == uid_of(job)


async def test_who_may_not_list_secrets_submits_and_stops_all_the_same() -> None:
    class Blind(MemoryKube):
        async def list(self, kind: Kind, selection: Selection = IN_NS) -> Any:
            if kind == SECRETS and selection.labels:
                raise NO_ROOM
            return await super().list(kind, selection)

    kube = Blind()
    assert name_of(await create_job(kube, asked("j"), FILES)) == ("ns", "j")
    await stop_jobs(kube, ("j",), "ns")
    assert await jobs(kube) == []


@pytest.mark.parametrize(
    ("held", "submitted"), [(("POST", SECRETS), False), (("POST", JOBS), False), (("PATCH", SECRETS), True)]
)
async def test_kill_9_at_any_moment_leaves_no_job_without_its_secret_and_the_next_run_tidies_up(
    held: tuple[str, Kind], *, submitted: bool, tmp_path: Path
) -> None:
    clock = Clock()
    kube = MemoryKube(clock)
    api = KubeApi(kube)
    (code := tmp_path / "code").mkdir()
    (code / "train.py").write_text("print(1)")
    async with serving(api, tmp_path) as config:
        api.held = held
        words = ("run", "-d", "--image", "a", "--code", str(code))
        async with running(config, *words, "--name", "killed") as process:
            await asyncio.wait_for(api.holds.wait(), 60)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        api.held = None
        killed = list(await owners(kube))
        assert len(killed) == (held != ("POST", SECRETS))
        assert await jobs(kube) == (["killed"] if submitted else [])
        clock.now += 3600
        assert await called(config, *words, "--name", "next") == "next"
        found = await owners(kube)
        assert sorted(found.values()) == ([["killed"], ["next"]] if submitted else [["next"]])
        assert all(found.get(each) == ["killed"] for each in killed) or not submitted
        assert await called(config, "stop", "next") == "deleted ns/next"
