"""One Job in a cluster of this process, whose pod gets on as the test says."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tessera.api.kubernetes.jobs import JobRequest, job_object, job_selection
from tessera.cli.work.submit.ownsecret import create_job
from tessera.clients.kube import JOBS, PODS, MemoryKube, Object, uid_of

RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}

_NOT_STARTED = {"exitCode": 128, "reason": "StartError", "message": 'exec: "python3": not found in $PATH'}
NO_PYTHON = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": _NOT_STARTED}}]}
"""The image has no such program."""


class SubmittedJob:
    """The Job `ns/j`.

    Args:
        kube: its cluster.

    """

    def __init__(self, kube: MemoryKube | None = None) -> None:
        self.kube = kube or MemoryKube()

    async def submit(self, queue: str = "") -> str:
        job = job_object(JobRequest(name="j", namespace="ns", image="a", queue=queue))
        return uid_of(await self.kube.create(JOBS, job))

    async def submit_notebook(self) -> None:
        """Submit it as a notebook whose token is `opens`."""
        asked = JobRequest(name="j", namespace="ns", image="a", own_secret="j-own", notebook=True)
        await create_job(self.kube, asked, {"token": b"opens"})

    async def pod(
        self, status: Mapping[str, Any], node: str = "", *, name: str = "j-1", containers: tuple[str, ...] = ("main",)
    ) -> None:
        """Give the pod `name` of the Job a status; it is created first, and is the Job's of that time."""
        spec = {"containers": [{"name": each} for each in containers]} | ({"nodeName": node} if node else {})
        if await self.kube.get(PODS, name, "ns") is None:
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid_of(await self.job())}
            metadata = {"name": name, "namespace": "ns", "labels": dict(job_selection("j"))}
            await self.kube.create(PODS, {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": spec})
        if node:
            await self.kube.patch(PODS, name, {"spec": {"nodeName": node}}, namespace="ns")
        await self.kube.patch(PODS, name, {"status": status}, namespace="ns", subresource="status")

    async def job(self) -> Object:
        """Return the Job, which exists."""
        found = await self.kube.get(JOBS, "j", "ns")
        assert found is not None
        return found

    async def suspend(self, *, suspended: bool = True) -> None:
        await self.kube.patch(JOBS, "j", {"spec": {"suspend": suspended}}, namespace="ns")

    async def counts(self, status: Mapping[str, Any]) -> None:
        """Give the Job a status, as its controller does."""
        await self.kube.patch(JOBS, "j", {"status": status}, namespace="ns", subresource="status")

    async def is_preempted(self, capture: pytest.CaptureFixture[str]) -> None:
        """Let a queue suspend it while it is followed, and admit it again: its second pod is `j-2`."""
        await self.suspend()
        await self.ends(0)  # on SIGTERM
        await said(capture, "j: Queued")
        await self.kube.delete(PODS, "j-1", namespace="ns")
        await self.suspend(suspended=False)
        await self.pod(RUNS, "n", name="j-2")

    async def ends(self, code: int, *, name: str = "j-1") -> None:
        state = {"terminated": {"exitCode": code}}
        phase = "Failed" if code else "Succeeded"
        await self.pod({"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}, "n", name=name)


async def said(capture: pytest.CaptureFixture[str], words: str) -> str:
    """Return what was printed on both streams when `words` are on either."""
    found = ""
    async with asyncio.timeout(20):
        while words not in found:
            await asyncio.sleep(0.01)
            found += "".join(capture.readouterr())
    return found
