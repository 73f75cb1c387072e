"""Files that an agent of an earlier version left: what they say is known to the agent that starts after it."""

import shutil
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.deviceplugins import device_plugins
from builders.kubeobjects import amount, pod
from builders.nodepods import AnnotatedPods, ListedPods
from builders.signed import Trusting, signed
from tessera.agent.deviceplugin import PluginPaths, Plugins
from tessera.agent.pods.podsview import PodsView
from tessera.clients.kube import Listing, Object
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement

pytestmark = pytest.mark.anyio

STATE = Path(__file__).parents[3] / "data" / "agentstate"
NEED = "tessera.dev/gpu-memory"
POD = signed(pod("p", {NEED: 2}, amount(0, memory_mib=2048), phase="Pending"))


def started(folder: Path) -> Plugins:
    """Return the plugins of an agent that has just started on a node with one pod."""

    async def relist() -> Listing:
        return Listing(objects=(POD,), resource_version="1")

    async def write(_: Object, __: object) -> None:
        raise AssertionError

    view = PodsView(
        ListedPods(lambda: (POD,), relist), DeviceCheckpoint(folder), PodResources(folder / "none"), proc=folder
    )
    paths = PluginPaths(
        plugins=folder, cdi=folder, answers_file=folder / "shares.json", allocations=folder / "allocations.json"
    )
    return device_plugins(paths, view, AnnotatedPods(view.pods, write), Trusting("a"))


async def test_files_without_a_version_are_read(tmp_path: Path) -> None:
    for name in ("shares.json", "allocations.json"):
        shutil.copy(STATE / name, tmp_path)
    plugins = started(tmp_path)
    assert [request.shares for request in plugins.shares.assigned_requests()] == [(amount(1, memory_mib=2048),)]
    slice_ = AllocatedDevice(device=DeviceId("GPU-00000001", Placement(0, 1, "1g.5gb")))
    memory = AllocatedDevice(device=DeviceId("GPU-00000001"), exclusivity=Exclusivity.MEMORY, memory_mib=2048)
    assert plugins.gate.record.entries == (
        AgentAllocation(
            resource="nvidia.com/mig-1g.5gb",
            ids=("MIG-1",),
            uses=(slice_,),
            uid="uid-q",
            pod="ns/q",
            container="main",
            at_ns=5,
        ),
        AgentAllocation(resource=NEED, ids=("GPU-00000001-_-0",), uses=(memory,), at_ns=6),
    )


async def test_a_file_of_a_later_version_is_left_and_said(tmp_path: Path) -> None:
    content = msgspec.json.decode((STATE / "shares.json").read_bytes()) | {"version": 2}
    (tmp_path / "shares.json").write_bytes(msgspec.json.encode(content))
    with capture_logs() as logs:
        plugins = started(tmp_path)
    assert [request.shares for request in plugins.shares.assigned_requests()] == [(amount(0, memory_mib=2048),)]
    assert logs[0]["event"] == "answers_forgotten"
