"""What becomes of a submission that is interrupted, and where its image comes from."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import yaml

from harness.commandline import called, running
from harness.kubeapi import KubeApi, serving
from tessera.api.kubernetes.jobs import ARCHIVE, WorkRequest
from tessera.cli.clusteraccess import ClusterSource
from tessera.cli.work.submit import submitting
from tessera.cli.work.submit.workoptions import Submission
from tessera.clients.kube import (
    ENVIRONMENTS,
    JOBS,
    Forbidden,
    Kind,
    Kube,
    MemoryKube,
    Object,
    Selection,
    Unanswered,
    name_of,
)

pytestmark = pytest.mark.anyio


async def jobs(kube: MemoryKube) -> list[str]:
    return [name_of(each)[1] for each in (await kube.list(JOBS, Selection(namespace="ns"))).objects]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("cancel", [False, True])
async def test_a_second_interrupt_waits_for_the_answer_about_the_job(
    number: signal.Signals, *, cancel: bool, tmp_path: Path
) -> None:
    api = KubeApi(kube := MemoryKube())
    api.held = ("POST", JOBS)
    words = ("run", "--image", "a", "--name", "train", "-n", "ns", *(["--cancel-on-interrupt"] if cancel else []))
    async with serving(api, tmp_path) as config, running(config, *words) as process:
        assert process.stderr is not None
        await asyncio.wait_for(api.holds.wait(), 60)
        said = b""
        while b"waiting for the API server's answer" not in said:
            process.send_signal(number)
            with suppress(TimeoutError):
                said += await asyncio.wait_for(process.stderr.readline(), 1)
        assert await jobs(kube) == []
        api.released.set()
        _, rest = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 130
        assert b"nothing was submitted" not in said + rest
        assert await jobs(kube) == ([] if cancel else ["train"])
        assert (b"deleted train -n ns" if cancel else b"it is still running: tessera attach train -n ns") in rest


@pytest.mark.parametrize("words", [("--code", "{code}"), ("--name", "train"), ()])
async def test_a_job_that_may_exist_is_not_submitted_again_without_a_look(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (code := tmp_path / "code").mkdir()
    (code / "main.py").write_text("print(1)")
    api = KubeApi(kube := MemoryKube())
    api.lost = ("POST", JOBS)
    options = (each.replace("{code}", str(code)) for each in words)
    async with serving(api, tmp_path) as config, running(config, "run", "--image", "a", *options) as process:
        out, error = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out, len(await jobs(kube))) == (4, b"", 1)
    assert b"'timed out': the Job may exist: tessera jobs -n ns lists it; if not, submit it again\n" in error


@pytest.mark.parametrize("files", [{}, {ARCHIVE: b"x"}])
@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("cancel", [False, True])
def test_ctrl_c_while_the_connection_closes_hides_no_error(
    files: dict[str, bytes], *, refused: bool, cancel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Losing(MemoryKube):
        async def create(self, kind: Kind, body: Object) -> Object:
            if kind == JOBS and refused:
                raise Forbidden("create Job in ns", found="it is not allowed", hint="ask")
            if kind == JOBS:
                self.lose_answers(1)
            return await super().create(kind, body)

    @asynccontextmanager
    async def closing_late(_: ClusterSource) -> AsyncIterator[Kube]:
        try:
            yield Losing()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)

    monkeypatch.setattr(submitting, "connected", closing_late)
    submission = Submission(
        cluster=ClusterSource(),
        work=WorkRequest(namespace="ns", name="train", own_secret="own" if files else "", code=bool(files)),
        files=files,
        image="a",
        environment="",
        dry_run=False,
        detach=True,
        delete_on_interrupt=cancel,
    )
    error, words = (Forbidden, "not allowed: ask") if refused else (Unanswered, "tessera jobs -n ns lists it")
    with pytest.raises(error, match=words):
        submitting.submit(submission, _never)


async def _never(_kube: Kube, _name: str) -> int:
    raise AssertionError


async def test_a_job_that_ctrl_c_cannot_delete_is_named(tmp_path: Path) -> None:
    words = ("run", "--image", "a", "--name", "train", "-n", "ns", "--cancel-on-interrupt")
    async with AsyncExitStack() as stack:
        async with serving(KubeApi(MemoryKube()), tmp_path) as config:
            process = await stack.enter_async_context(running(config, *words))
            assert process.stderr is not None
            await asyncio.wait_for(process.stderr.readuntil(b"train: Pending"), 60)
        process.send_signal(signal.SIGINT)
        _, rest = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 4
    assert b"it may still be running: tessera stop train -n ns deletes it" in rest
    assert b"delete Job ns/train: " in rest


async def test_the_image_of_an_environment_is_found_on_the_way_to_the_job(tmp_path: Path) -> None:
    kube = MemoryKube()
    await kube.create(ENVIRONMENTS, {"metadata": {"name": "pytorch"}, "spec": {"image": "r.example/pytorch:1"}})
    async with serving(KubeApi(kube), tmp_path) as config:
        shown = yaml.safe_load(await called(config, "run", "-e", "pytorch", "--dry-run"))
        assert await jobs(kube) == []
        name = await called(config, "run", "-e", "pytorch", "-d")
        async with running(config, "run", "-e", "other", "--dry-run") as process:
            out, error = await asyncio.wait_for(process.communicate(), 60)
    made = await kube.get(JOBS, name, "ns")
    assert made is not None
    assert made["metadata"]["generateName"] == "pytorch-"
    for job in (shown, made):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "r.example/pytorch:1"
    assert (process.returncode, out) == (2, b"")
    assert b"--environment other: there is no such environment: choose one of pytorch" in error


@pytest.mark.parametrize("words", [("run", "--code", "{code}"), ("notebook",)])
async def test_a_dry_run_with_an_environment_prints_the_job_s_own_secret_too(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (code := tmp_path / "code").mkdir()
    (code / "main.py").write_text("print(1)")
    kube = MemoryKube()
    image = {"image": "r.example/jupyter:1", "notebook": True}
    await kube.create(ENVIRONMENTS, {"metadata": {"name": "jupyter"}, "spec": image})
    async with serving(KubeApi(kube), tmp_path) as config:
        options = (each.replace("{code}", str(code)) for each in words)
        printed = await called(config, *options, "-e", "jupyter", "--dry-run")
    secret, job = yaml.safe_load_all(printed)
    assert (secret["kind"], job["kind"]) == ("Secret", "Job")
    assert secret["metadata"]["name"] in str(job["spec"])


async def test_ctrl_c_deletes_no_job_of_another_that_took_the_name(tmp_path: Path) -> None:
    words = ("run", "--image", "a", "--name", "train", "-n", "ns", "--cancel-on-interrupt")
    api = KubeApi(kube := MemoryKube())
    async with serving(api, tmp_path) as config, running(config, *words) as process:
        assert process.stderr is not None
        await asyncio.wait_for(process.stderr.readuntil(b"train: Pending"), 60)
        api.held = ("DELETE", JOBS)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(api.holds.wait(), 60)
        await kube.delete(JOBS, "train", namespace="ns")
        await kube.create(JOBS, {"metadata": {"name": "train", "namespace": "ns"}})
        api.released.set()
        await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode != 0
    assert await jobs(kube) == ["train"]
