"""The kubelet's record of devices, asked over its socket: patience, connections, deadlines."""

import asyncio
import socket
from pathlib import Path

import pytest

from harness.plugins import RESOURCE
from tessera.clients.kubelet import MemoryKubelet, OptionalCalls, PodResources, register
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio


async def test_too_many_questions_are_asked_again_until_the_deadline(kubelet: MemoryKubelet) -> None:
    kubelet.refused_lists = 3
    assert await PodResources(kubelet.pod_resources).list() == ()
    kubelet.refused_lists = 1000
    with pytest.raises(Unavailable, match="no answer"):
        await PodResources(kubelet.pod_resources, deadline_s=0.2).list()


async def test_one_connection_serves_many_calls_and_is_renewed(kubelet: MemoryKubelet) -> None:
    async with PodResources(kubelet.pod_resources) as record:
        assert await record.list() == await record.list() == ()
        await kubelet.restart()
        assert await record.list() == ()
        await kubelet.stop()
        with pytest.raises(Unavailable):
            await record.list()
        await kubelet.start()
        assert await record.list() == ()


async def test_questions_at_the_same_time_are_all_answered(kubelet: MemoryKubelet) -> None:
    """The end of one must not cancel another: a canceled loop of the agent would end without a word."""
    resources = PodResources(kubelet.pod_resources)
    assert await asyncio.gather(*(resources.list() for _ in range(20))) == [()] * 20
    async with resources:
        assert await asyncio.gather(*(resources.list() for _ in range(20))) == [()] * 20


async def test_a_kubelet_that_is_not_there(socket_folder: Path) -> None:
    with pytest.raises(Unavailable, match="PodResources within 5 s"):
        await PodResources(socket_folder / "kubelet.sock").list()
    with pytest.raises(Unavailable, match=RESOURCE):
        await register(socket_folder / "kubelet.sock", "x.sock", RESOURCE, OptionalCalls())


async def test_a_kubelet_that_does_not_answer(socket_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(socket_folder / "kubelet.sock"))
        silent.listen()
        with pytest.raises(Unavailable, match=r"no answer in 0\.2 s"):
            await register(socket_folder / "kubelet.sock", "x.sock", RESOURCE, OptionalCalls(), deadline_s=0.2)
        with pytest.raises(Unavailable, match="no answer"):
            await PodResources(socket_folder / "kubelet.sock", deadline_s=0.2).list()
