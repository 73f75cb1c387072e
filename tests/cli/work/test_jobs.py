"""`tessera jobs`, `logs` and `attach`: what was submitted, and what became of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from builders.modelservers import server
from harness.commandline import called, running
from harness.kubeapi import KubeApi, serving
from harness.submittedjob import NO_PYTHON, SubmittedJob
from tessera.api.kubernetes.jobs import JobRequest, job_object
from tessera.clients.kube import JOBS
from tessera.core.serving.render import job

pytestmark = pytest.mark.anyio


async def test_jobs_are_listed_and_logs_printed_and_an_ended_one_is_attached_to(tmp_path: Path) -> None:
    one = SubmittedJob()
    await one.submit()
    await one.kube.create(JOBS, job_object(JobRequest(name="k", namespace="other", image="a")))
    foreign = job_object(JobRequest(name="backup", namespace="ns", image="a"))
    foreign["metadata"]["labels"] = {}
    await one.kube.create(JOBS, foreign)
    async with serving(KubeApi(one.kube), tmp_path) as config:
        async with running(config, "logs", "j") as process:
            _, error = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, b"job ns/j: Pending: try again when its pod has started" in error) == (2, True), (
            error
        )
        one.kube.written["ns", "j-1"] = [b"epoch 1\n", b"epoch 2\n"]
        await one.ends(3)
        listed = json.loads(await called(config, "jobs", "-o", "json"))
        assert [(each["name"], each["stage"], each["node"], each["exit_code"]) for each in listed] == [
            ("j", "Failed", "n", 3)
        ]
        everywhere = json.loads(await called(config, "jobs", "-A", "-o", "json"))
        assert {(each["namespace"], each["name"]) for each in everywhere} == {("ns", "j"), ("other", "k")}
        rows = [line.split() for line in (await called(config, "jobs")).splitlines() if line.strip(" -")]
        assert [each[:3] for each in rows[:2]] == [["NAME", "NAMESPACE", "STATUS"], ["j", "ns", "Failed"]]
        assert await called(config, "logs", "j") == "epoch 1\nepoch 2"
        async with running(config, "attach", "j") as process:
            out, error = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, out) == (3, b"epoch 1\nepoch 2\n")
        assert b"j: Failed on n: its command ended with 3" in error


NO_TAR = {"name": "unpack-code", "state": {"terminated": {"exitCode": 128, "message": "no tar in $PATH"}}}
INITIALIZING = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
NEVER_RAN: dict[str, tuple[dict[str, Any], str]] = {
    "its code was not unpacked": (
        {"initContainerStatuses": [NO_TAR], "containerStatuses": [INITIALIZING]},
        "its code was not unpacked, which needs tar and gzip in the image: no tar in $PATH",
    ),
    "a program that is not in the image": (
        NO_PYTHON,
        'its command did not start: exec: "python3": not found in $PATH',
    ),
}


@pytest.mark.parametrize("case", NEVER_RAN)
async def test_a_command_that_never_ran_has_a_cause_and_no_log(case: str, tmp_path: Path) -> None:
    states, cause = NEVER_RAN[case]
    one = SubmittedJob()
    await one.submit()
    await one.pod({"phase": "Failed", **states}, "n")
    async with serving(KubeApi(one.kube), tmp_path) as config:
        for command, code, words in (
            ("attach", 5, f"error: job ns/j: {cause}: correct that, and submit it again"),
            ("logs", 2, f"error: job ns/j: Failed: {cause}: there is no log; correct that, and submit it again"),
        ):
            async with running(config, command, "j") as process:
                out, error = await asyncio.wait_for(process.communicate(), 60)
            assert (process.returncode, out, words in error.decode()) == (code, b"", True), error


async def test_a_job_of_render_is_listed_attached_to_and_stopped(tmp_path: Path) -> None:
    one = SubmittedJob()
    await one.kube.create(JOBS, job(server(name="j", namespace="ns"), ("embed",), parallelism=2, completions=3))
    async with serving(KubeApi(one.kube), tmp_path) as config:
        listed = json.loads(await called(config, "jobs", "-o", "json"))
        assert [(each["name"], each["stage"], each["reason"]) for each in listed] == [
            ("j", "Pending", "0 of 3 parts done")
        ]
        await one.counts({"succeeded": 3, "conditions": [{"type": "Complete", "status": "True"}]})
        for command, code, words in (
            ("attach", 0, b"j: Succeeded: 3 of 3 parts done"),
            ("logs", 2, b"job ns/j: Succeeded: 3 of 3 parts done: its pod was deleted, and its log with it"),
            ("stop", 0, b""),
        ):
            async with running(config, command, "j") as process:
                _, error = await asyncio.wait_for(process.communicate(), 60)
            assert (process.returncode, words in error) == (code, True), error
        assert json.loads(await called(config, "jobs", "-o", "json")) == []
    assert await one.kube.get(JOBS, "j", "ns") is None
