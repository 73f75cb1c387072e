"""What becomes of a submission that is interrupted, and where its image comes from."""

import asyncio
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import yaml

from harness.commandline import called, running
from harness.kubeapi import KubeApi, serving
from tessera.clients.kube import ENVIRONMENTS, JOBS, MemoryKube, Selection, name_of

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
