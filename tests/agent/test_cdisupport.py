"""What a node has for CDI."""

import msgspec
import pytest

from harness.doctornode import NODE, look
from tessera.agent.doctor import DoctorPaths
from tessera.clients.kube import NODES, MemoryKube

pytestmark = pytest.mark.anyio


CONTAINERD = {
    "switched off": ('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n', (2, False, "")),
    "switched on": ('version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = true\n', (3, True, "")),
    "silent": ('version = 2\nplugins = {"io.containerd.grpc.v1.cri" = 3}\n', (2, None, "")),
    "another version": ('version = "x"\n', (0, None, "")),
    "broken": ("version = \n", (0, None, "Invalid value (at line 1, column 11)")),
}


@pytest.mark.parametrize(("text", "want"), CONTAINERD.values(), ids=CONTAINERD)
async def test_the_runtime_says_whether_cdi_is_on(
    places: DoctorPaths, text: str, want: tuple[int, bool | None, str]
) -> None:
    places.runtime_config.parent.mkdir(parents=True)
    places.runtime_config.write_text(text)
    runtime = (await look(places)).runtime
    assert (runtime.version, runtime.cdi, runtime.problem) == want


async def test_the_driver_s_folder_counts_as_its_specification(places: DoctorPaths) -> None:
    kube = MemoryKube()
    info = {"containerRuntimeVersion": "containerd://2.0.7", "kubeletVersion": "v1.33.5-gke.1080000"}
    await kube.create(NODES, {"kind": "Node", "metadata": {"name": NODE}, "status": {"nodeInfo": info}})
    for folder, want in (("", "envvar"), ("/home/kubernetes/bin/nvidia", "cdi-cri")):
        seen = await look(msgspec.structs.replace(places, driver_folder=folder), kube=kube, node=NODE)
        assert seen.list_strategies is not None
        assert (seen.driver_spec, seen.list_strategies.strategies) == (folder, (want,))
