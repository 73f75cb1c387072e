"""One Job in a cluster of this process, whose pod gets on as the test says."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tessera.api.kubernetes.jobs import JobRequest, job_object, job_selection
from tessera.clients.kube import JOBS, PODS, MemoryKube, uid_of

RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}


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

    async def pod(self, status: Mapping[str, Any], node: str = "") -> None:
        metadata = {"name": "j-1", "namespace": "ns", "labels": dict(job_selection("j"))}
        body = {"metadata": metadata, "spec": {"nodeName": node} if node else {}}
        if await self.kube.get(PODS, "j-1", "ns") is None:
            await self.kube.create(PODS, body)
        await self.kube.patch(PODS, "j-1", {"spec": body["spec"]}, namespace="ns")
        await self.kube.patch(PODS, "j-1", {"status": status}, namespace="ns", subresource="status")

    async def ends(self, code: int) -> None:
        state = {"terminated": {"exitCode": code}}
        await self.pod({"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]}, "n")


async def said(capture: pytest.CaptureFixture[str], words: str) -> str:
    """Return what was printed on both streams when `words` are on either."""
    found = ""
    async with asyncio.timeout(20):
        while words not in found:
            await asyncio.sleep(0.01)
            found += "".join(capture.readouterr())
    return found
