"""What is seen on a node: sockets, folders, files, daemons, the Node object."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from harness.doctornode import NODE, look
from tessera.agent.declarations.configuration import Sources
from tessera.agent.doctor import DoctorPaths
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kube import GPU_NODES, NODES, MemoryKube
from tessera.core.cluster.mpstargets import MpsTarget
from tessera.core.node.doctor import CheckResult, checks
from tessera.core.node.liststrategies import ListStrategies
from tessera.core.node.mpslifecycle import DaemonRecord
from tessera.errors import Unavailable, Unsupported

pytestmark = pytest.mark.anyio


@contextlib.contextmanager
def listening(*paths: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(path))
            server.listen()
        yield


async def test_a_bare_machine(places: DoctorPaths) -> None:
    seen = await look(places, Unsupported("NVML", found="no libnvidia-ml.so.1", hint="install it"))
    assert (seen.inventory, seen.driver_problem, seen.driver_fix) == (None, "no libnvidia-ml.so.1", "install it")
    assert [each.problem for each in (*seen.kubelet, seen.runtime.socket)] == ["No such file or directory"] * 3
    assert not any(each.exists for each in (seen.shm, seen.mps_root, seen.plugin_folder, *seen.cdi_folders))
    assert (seen.mps_program, seen.mps_desired, seen.node) == ("", False, None)
    assert checks(seen)


@pytest.mark.parametrize(
    ("strategies", "want"), [("[envvar]", False), ("[envvar, cdi-cri]", True), ("cdi-annotations", True)]
)
async def test_the_sharing_file_says_whether_cdi_is_used(places: DoctorPaths, strategies: str, want: bool) -> None:
    file = places.cdi[0].parent / "sharing.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"version: v1\nflags: {{plugin: {{deviceListStrategy: {strategies}}}}}\n")
    given = msgspec.structs.replace(places, sources=Sources(sharing=file))
    assert (await look(given)).cdi_desired is want
    assert not (await look(places)).cdi_desired


async def test_a_node_in_order(places: DoctorPaths) -> None:
    for folder in (places.shm, *places.cdi):
        folder.mkdir(parents=True)
    (places.cdi[0] / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{name: '0'}, {name: all}]\n")
    (places.cdi[1] / "README").write_text("not a spec")
    driver = MemoryDriver.of("T4")
    kube = MemoryKube()
    info = {"containerRuntimeVersion": "containerd://2.4.2", "kubeletVersion": "v1.36.3"}
    metadata = {"name": NODE, "labels": {"nvidia.com/gpu.count": "1"}}
    await kube.create(NODES, {"kind": "Node", "metadata": metadata, "status": {"nodeInfo": info}})
    with listening(places.plugins / "kubelet.sock", places.pod_resources, places.runtime):
        seen = await look(places, driver, kube)
    assert seen.cdi_devices == (
        (f"{places.cdi[0]}/nvidia.yaml", "nvidia.com/gpu=0"),
        (f"{places.cdi[0]}/nvidia.yaml", "nvidia.com/gpu=all"),
    )
    assert {each.verdict for each in checks(seen)} == {CheckResult.OK, CheckResult.SKIPPED}
    assert seen.list_strategies == ListStrategies(strategies=("cdi-cri",))
    assert seen.driver_spec == str(places.cdi[0] / "nvidia.yaml")


ACCEPT = "accept-nvidia-visible-devices"
TOOLKIT = {
    "silent, so that the defaults hold": ("disable-require = false\n", (True, False, "")),
    "closed": (
        f"{ACCEPT}-envvar-when-unprivileged = false\n{ACCEPT}-as-volume-mounts = true\n[nvidia-container-cli]\n",
        (False, True, ""),
    ),
    "broken": ("= 3", (True, False, "Invalid statement (at line 1, column 1)")),
}


@pytest.mark.parametrize(("text", "want"), TOOLKIT.values(), ids=TOOLKIT)
@pytest.mark.parametrize("place", [0, 1])
async def test_the_settings_of_nvidias_runtime(
    places: DoctorPaths, text: str, want: tuple[bool, bool, str], place: int
) -> None:
    path = places.toolkit_configs[place]
    path.parent.mkdir(parents=True)
    path.write_text(text)
    toolkit = (await look(places)).toolkit
    assert (toolkit.accepts_environment, toolkit.accepts_mounts, toolkit.problem) == want
    assert toolkit.config == str(path)


async def test_an_option_says_how_devices_are_handed_over(places: DoctorPaths) -> None:
    given = msgspec.structs.replace(places, list_strategies=("volume-mounts",))
    assert (await look(given)).list_strategies == ListStrategies(strategies=("volume-mounts",))
    assert (await look(places)).list_strategies is None


async def test_what_a_gpu_policy_overrides_is_a_warning_and_no_drift(places: DoctorPaths) -> None:
    file = places.cdi[0].parent / "sharing.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n")
    given = msgspec.structs.replace(places, sources=Sources(sharing=file))
    kube = MemoryKube()
    await kube.create(NODES, {"kind": "Node", "metadata": {"name": NODE}})
    assert (await look(given, kube=kube)).generation.startswith("sharing.yaml@")
    document = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "auto"}]}
    spec = {"policy": {"name": "all", "document": document}}
    await kube.create(GPU_NODES, {"kind": "GPUNode", "metadata": {"name": NODE}, "spec": spec})
    seen = await look(given, kube=kube)
    assert seen.generation.startswith("gpupolicy/all@")
    warnings = [
        each.found for each in checks(seen) if each.verdict is CheckResult.WARNING and each.name == "configuration"
    ]
    assert any("has no effect on the sharing of GPU 0: GPUPolicy all decides" in each for each in warnings)
    kube.uninstall(GPU_NODES)
    assert (await look(given, kube=kube)).generation.startswith("sharing.yaml@")


async def test_cdi_files_that_cannot_be_read(places: DoctorPaths) -> None:
    folder = places.cdi[1]
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{")
    (folder / "b.yaml").mkdir()
    with (folder / "c.json").open("w") as large:
        large.truncate((8 << 20) + 1)
    (folder / "d.json").write_text("")
    problems = (await look(places)).cdi_problems
    assert len(problems) == 4
    assert "d.json: it has no CDI specification" in problems[3]
    assert problems[1].endswith("b.yaml: Is a directory")
    assert "more than 8 MiB" in problems[2]


async def test_names_of_cdi_files_that_are_no_text_can_be_printed(places: DoctorPaths) -> None:
    places.cdi[0].mkdir(parents=True)
    for name, text in ((b"x\xff.json", "{"), (b"y\xff.json", '{"kind": "a/b", "devices": [{"name": "c"}]}')):
        (places.cdi[0] / os.fsdecode(name)).write_text(text)
    seen = await look(places)
    for path in (seen.cdi_problems[0], seen.cdi_devices[0][0]):
        assert "\N{REPLACEMENT CHARACTER}.json" in path
        assert path.encode()


async def test_daemons_that_are_gone(places: DoctorPaths) -> None:
    target = MpsTarget(key="GPU-0", gpu="GPU-0", visible="GPU-0")
    for key, text in (
        ("GPU-0", msgspec.json.encode(DaemonRecord(target=target, pid=1, started="boot/0"))),
        ("GPU-1", b"{"),
    ):
        (places.mps_root / key).mkdir(parents=True)
        (places.mps_root / key / "daemon.json").write_bytes(text)
    driver = MemoryDriver.of("T4", "T4")
    uuid = (await driver.inventory()).gpus[0].uuid
    driver.start_process(uuid, 77)
    target = msgspec.structs.replace(target, gpu=uuid)
    (places.mps_root / "GPU-2").mkdir()
    (places.mps_root / "GPU-2" / "daemon.json").write_bytes(
        msgspec.json.encode(DaemonRecord(target=target, pid=1, started="boot/0"))
    )
    seen = await look(places, driver)
    assert seen.processes == ((uuid, 77),)
    assert (await look(places, Unsupported("NVML", found="no driver"))).processes == ()
    daemons = seen.daemons
    assert [(each.key, each.problem) for each in daemons] == [
        ("GPU-0", "its process has ended"),
        ("GPU-1", "there is no readable record of it"),
        ("GPU-2", "its process has ended"),
    ]


async def test_a_configuration_is_looked_at_and_not_kept(places: DoctorPaths, root: Path) -> None:
    policy = root / "policy.yaml"
    policy.write_text("apiVersion: tessera.dev/v1alpha1\nkind: NodePolicy\ngpus: [{sharing: auto}, {devices: [9]}]\n")
    sources = Sources(policy=policy, applied=root / "applied.json")
    given = msgspec.structs.replace(places, sources=sources)
    seen = await look(given)
    assert seen.mps_desired
    assert seen.config_notes == ("node policy: this node has no GPU 9",)
    assert not (root / "applied.json").exists()
    policy.write_text("kind: Fleet\n")
    assert "apiVersion" in (await look(given)).config_problem


async def test_what_does_not_answer(places: DoctorPaths) -> None:
    driver = MemoryDriver.of("T4")
    refused = Unavailable("driver", found="a timeout", expected="an answer")
    driver.fail("inventory", refused)
    kube = MemoryKube()
    seen = await look(places, driver, kube)
    assert (seen.driver_problem, seen.node_problem) == (refused.cause, f"there is no node {NODE}")
    assert (await look(places, driver, kube, "")).node_problem == ""
    kube.stop()
    assert "start it again" in (await look(places, driver, kube)).node_problem
