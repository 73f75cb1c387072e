"""`tessera mig` shows, changes, compares, writes down and brings back the layouts of a node."""

import asyncio
import ctypes
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builders.gpufacts import at, gpu_facts
from builders.kubeobjects import gpunode, pod, share
from harness.virtualtime import run
from tessera.agent.partition import NodeLocks
from tessera.cli import main
from tessera.cli.mig.node import NodeClients, locks_in
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kube import DISRUPTION_BUDGETS, GPU_NODES, PODS, Kind, MemoryKube, annotations_of, name_of
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.sharing import Mode
from tessera.errors import TesseraError, Unavailable, Unsupported
from tessera.sim.nvmlsim import Machine, create_state, library

A100 = model("A100-40GB")
SEVEN = at(A100, *(("1g.5gb", start) for start in range(7)))
HALVES = at(A100, ("3g.20gb", 0), ("3g.20gb", 4))
FILE = """
version: v1
mig-configs:
  half-half:
  - devices: [0]
    mig-enabled: true
    mig-devices: {3g.20gb: 2}
"""
UNITS = "tessera.dev/gpu-memory"
NO_KUBELET = ("--kubelet-socket", "/nowhere/kubelet.sock")


def _allocation(name: tuple[str, str], devices: str) -> KubeletAllocation:
    ids = tuple(sorted(devices.split(",")))
    resource = UNITS if "-_-" in devices else "nvidia.com/mig"
    return KubeletAllocation(namespace=name[0], pod=name[1], container="main", resource=resource, device_ids=ids)


class Node:
    """A node with GPUs in memory, on which commands run."""

    def __init__(self, *gpus: GpuFacts, folder: Path) -> None:
        self.driver = MemoryDriver(gpus)
        self.kube = MemoryKube()
        self.file = folder / "mig.yaml"
        self.file.write_text(FILE)

    def pod(self, name: str, device: str, *, node: str = "n1", **labels: str) -> None:
        """Make a pod that holds a device."""
        metadata = {"name": name, "namespace": "ns", "labels": labels, "annotations": {"holds": device}}
        run(self.kube.create(PODS, {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}))

    async def record(self) -> list[KubeletAllocation]:
        pods = (await self.kube.list(PODS)).objects
        return [
            _allocation(name_of(each), annotations_of(each)["holds"])
            for each in pods
            if "holds" in annotations_of(each)
        ]

    def run(self, *arguments: str, code: int = 0) -> Result:
        means = NodeClients(driver=self.driver, record=self.record, kube=self.kube)
        result = CliRunner(env={"NODE_NAME": None, "TESSERA_MIG_STATE_DIR": str(self.file.parent / "state")}).invoke(
            main, ["mig", *arguments, *NO_KUBELET], obj=means
        )
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "-o", "json", code=code).stdout)

    def layouts(self) -> list[object]:
        return [gpu.layout for gpu in run(self.driver.inventory()).gpus]


def test_list_shows_gpus_instances_users_and_what_could_be(tmp_path: Path) -> None:
    node = Node(
        gpu_facts(layout=HALVES, incomplete=()),
        gpu_facts("T4", index=1),
        gpu_facts(index=2, lost=True),
        gpu_facts(index=3, pending=True),
        folder=tmp_path,
    )
    node.driver.start_process("GPU-0", 77, HALVES[0])
    node.driver.start_process("GPU-1", 78)
    text = node.run("list", "-f", str(node.file)).stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "0 A100-40GB, MIG on GPU-0" in lines
    assert "3g.20gb at 0 process 77 MIG-0-0" in lines
    assert "3g.20gb at 4 MIG-0-1" in lines
    assert "1 T4, no MIG process 78 GPU-1" in lines
    assert "2 A100-40GB, lost GPU-2" in lines
    assert "3 A100-40GB, MIG off, on after a reset GPU-3" in lines
    assert any(line.startswith("Configurations: half-half, all-disabled, all-enabled, all-1g.5gb,") for line in lines)
    plain = node.json("list")
    assert plain["gpus"][0]["mig"] == {"current": True, "pending": True}
    assert plain["gpus"][0]["instances"][0] == {
        "profile": "3g.20gb",
        "start": 0,
        "uuid": "MIG-0-0",
        "memory_mib": 1024,
        "users": [{"pid": 77}],
    }
    assert plain["gpus"][1]["users"] == [{"pid": 78}]
    assert plain["configurations"][0] == "all-disabled"


def with_units(node: Node, mib: int = 8192) -> None:
    """Make a pod with eight units, of which the kubelet took one from GPU 0, that was assigned GPU 1."""
    ids = ",".join(("GPU-0-_-7", *(f"GPU-1-_-{unit}" for unit in range(7))))
    made = pod("p", {UNITS: 8}, share(1, mib, Mode.MEMORY_SHARE), node="n1", annotations={"holds": ids})
    run(node.kube.create(PODS, made))


def users(node: Node, *arguments: str) -> list[list[dict[str, str]]]:
    return [each["users"] for each in node.json("list", *arguments)["gpus"]]


@pytest.mark.parametrize("unit_mib", [0, 1024, 512])
def test_assignments_tell_whose_units_are_on_which_gpu(unit_mib: int, tmp_path: Path) -> None:
    node = Node(gpu_facts(), gpu_facts(index=1), folder=tmp_path)
    with_units(node, 8 * (unit_mib or 1024))
    if unit_mib:
        run(node.kube.create(GPU_NODES, gpunode("n1", unit_mib=unit_mib)))
    assert users(node, "--node", "n1") == [[], [{"pod": "ns/p"}]]
    assert "note" not in node.run("list", "--node", "n1").stderr
    assert users(node, "--node", "n2") == [[{"pod": "ns/p"}]] * 2


def test_mig_is_switched_on_the_gpu_that_units_are_not_on(tmp_path: Path) -> None:
    node = Node(gpu_facts(), gpu_facts(index=1), folder=tmp_path)
    with_units(node)
    planned = node.json("apply", "-c", "all-1g.5gb", "--dry-run", code=5)["gpus"]
    assert [each["result"] for each in planned] == ["blocked"] * 2
    node.run("apply", "-c", "all-1g.5gb", "--node", "n1", code=5)
    assert node.layouts() == [SEVEN, None]


class Refusing(MemoryKube):
    """An API that cannot tell something."""

    def __init__(self, kind: Kind, error: Exception) -> None:
        super().__init__()
        self._refused = kind, error

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Any:
        if kind is self._refused[0]:
            raise self._refused[1]
        return await super().get(kind, name, namespace)


DOWN = Unavailable("the API server", found="no answer", expected="one")
WITHOUT: dict[str, tuple[tuple[str, ...], TesseraError | TimeoutError, str]] = {
    "no name": ((), DOWN, "no node name, from --node or NODE_NAME"),
    "no API": (("--node", "n1"), DOWN, "the API server: no answer"),
    "a silent API": (("--node", "n1"), TimeoutError(), "the API server did not respond within 10 s"),
}


@pytest.mark.parametrize(("arguments", "error", "want"), WITHOUT.values(), ids=WITHOUT)
def test_without_assignments_units_stand_at_every_gpu_they_may_be_of(
    arguments: tuple[str, ...], error: Exception, want: str, tmp_path: Path
) -> None:
    node = Node(gpu_facts(), gpu_facts(index=1), folder=tmp_path)
    node.kube = Refusing(GPU_NODES, error)
    with_units(node)
    assert users(node, *arguments) == [[{"pod": "ns/p"}]] * 2
    assert want in node.run("list", *arguments).stderr


def test_a_cluster_without_the_kind_gpunode_counts_in_gib(tmp_path: Path) -> None:
    node = Node(gpu_facts(), gpu_facts(index=1), folder=tmp_path)
    node.kube = Refusing(GPU_NODES, Unsupported("GPUNode", found="no such kind", expected="it"))
    with_units(node)
    assert users(node, "--node", "n1") == [[], [{"pod": "ns/p"}]]


def test_apply_changes_what_must_change_and_the_second_time_nothing(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=HALVES[:1]), gpu_facts("T4", index=1), gpu_facts(index=2), folder=tmp_path)
    plain = node.json("apply", "-f", str(node.file))["gpus"]
    assert [(each["index"], each["result"], each["steps"]) for each in plain] == [
        (0, "done", [{"do": "create", "profile": "3g.20gb", "start": 4, "disturbs": []}])
    ]
    assert node.layouts() == [HALVES, None, None]
    assert [each["result"] for each in node.json("apply", "-f", str(node.file))["gpus"]] == ["unchanged"]
    assert "unchanged" in node.run("apply", "-f", str(node.file), "-c", "half-half").stdout


def test_apply_without_a_file_switches_mig_on_and_off(tmp_path: Path) -> None:
    node = Node(gpu_facts(), folder=tmp_path)
    node.run("apply", "-c", "all-1g.5gb", "--checkpoint", str(tmp_path / "deep" / "mig.json"))
    assert node.layouts() == [SEVEN]
    assert json.loads((tmp_path / "deep" / "mig.json").read_text())["gpus"][0]["mig"] is True
    node.run("apply", "-c", "all-disabled")
    assert node.layouts() == [None]


def test_dry_run_shows_steps_and_whom_each_disturbs(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=SEVEN[:2]), folder=tmp_path)
    node.driver.start_process("GPU-0", 77, SEVEN[1])
    plain = node.json("apply", "-f", str(node.file), "--dry-run", code=5)["gpus"]
    assert plain[0]["result"] == "blocked"
    assert plain[0]["steps"] == [
        {"do": "destroy", "profile": "1g.5gb", "start": 0, "disturbs": []},
        {"do": "destroy", "profile": "1g.5gb", "start": 1, "disturbs": [{"pid": 77}]},
        {"do": "create", "profile": "3g.20gb", "start": 0, "disturbs": []},
        {"do": "create", "profile": "3g.20gb", "start": 4, "disturbs": []},
    ]
    text = node.run("apply", "-f", str(node.file), "--dry-run", code=5).stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "destroy 1g.5gb at 0 nothing" in lines
    assert "destroy 1g.5gb at 1 process 77" in lines
    assert node.layouts() == [SEVEN[:2]]
    assert "switch MIG off" in node.run("apply", "-c", "all-disabled", "--dry-run", code=5).stdout


@pytest.mark.parametrize("text", [None, "x", "users: [["])
def test_a_kubeconfig_that_cannot_be_read_is_said_also_where_no_pods_are_seen(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    driver = MemoryDriver((gpu_facts(),))
    words = ("mig", "apply", "-c", "all-1g.5gb", "--kubeconfig", str(file), *NO_KUBELET)
    result = CliRunner(env={"TESSERA_MIG_STATE_DIR": str(tmp_path)}).invoke(main, words, obj=NodeClients(driver=driver))
    assert (result.exit_code, "kubeconfig" in result.stderr) == (2, True)
    assert run(driver.inventory()).gpus[0].layout is None


def test_a_kubeconfig_that_is_of_no_use_is_said(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    plain = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "c"}
    file.write_text(json.dumps(plain))
    words = ("mig", "list", "--kubeconfig", str(file), *NO_KUBELET)
    result = CliRunner().invoke(main, words, obj=NodeClients(driver=MemoryDriver((gpu_facts(),))))
    assert result.exit_code == 0, result.output
    assert "note: --kubeconfig is not used: no kubelet at /nowhere/kubelet.sock" in result.stderr


def test_used_instances_are_refused(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=SEVEN), folder=tmp_path)
    node.driver.start_process("GPU-0", 77, SEVEN[1])
    result = node.run("apply", "-f", str(node.file), code=5)
    assert (
        "1g.5gb at 1 is in use and occupies memory slice 1, needed for 3g.20gb at 0; used by process 77"
        in result.stderr
    )
    assert node.layouts() == [SEVEN]


def test_pods_in_the_way_are_evicted_where_that_is_asked_for(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=SEVEN), folder=tmp_path)
    node.pod("p", "MIG-0-1")
    node.pod("q", "MIG-0-6")
    arguments = ("apply", "-f", str(node.file), "--evict", "--node", "n1")
    plain = node.json(*arguments, "--dry-run")["gpus"][0]
    assert plain["result"] == "planned"
    pods = [{"pod": "ns/p"}, {"pod": "ns/q"}]
    assert plain["steps"][:2] == [{"do": "evict", "disturbs": [each]} for each in pods]
    assert "evict pod ns/p" in " ".join(node.run(*arguments, "--dry-run").stdout.split())
    assert node.layouts() == [SEVEN]
    done = node.json(*arguments)["gpus"][0]
    assert (done["result"], done["reason"]) == ("done", "")
    assert done["steps"] == plain["steps"]
    assert node.layouts() == [HALVES]
    assert run(node.kube.list(PODS)).objects == ()


def test_a_disruption_budget_and_a_process_are_honoured(tmp_path: Path) -> None:
    """What nobody stands in the way of is done all the same."""
    node = Node(gpu_facts(layout=SEVEN), gpu_facts(index=1, layout=SEVEN), folder=tmp_path)
    node.pod("p", "MIG-0-1", app="web")
    budget = {"metadata": {"name": "web", "namespace": "ns"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}
    run(node.kube.create(DISRUPTION_BUDGETS, budget | {"status": {"disruptionsAllowed": 0}}))
    arguments = ("apply", "-c", "all-3g.20gb", "--evict", "--node", "n1", "--timeout", "5")
    result = node.run(*arguments, code=5)
    assert "pod ns/p is not evicted: PodDisruptionBudget web allows no disruption now" in result.stderr
    assert node.layouts() == [SEVEN, HALVES]
    node.driver.start_process("GPU-0", 77, SEVEN[5])
    planned = node.json(*arguments, "--dry-run", code=5)["gpus"][0]
    assert planned["result"] == "blocked"
    assert "process 77" in planned["reason"]


@pytest.mark.parametrize(
    ("arguments", "code", "want"),
    [
        (
            (),
            2,
            "--evict: it names no node: give --node or NODE_NAME, the name of this node's Node object",
        ),
        (("--node", "n2", "--timeout", "1"), 5, "pod ns/p is not evicted: it is on node"),
    ],
)
def test_evictions_that_cannot_be(arguments: tuple[str, ...], code: int, want: str, tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=SEVEN), folder=tmp_path)
    node.pod("p", "MIG-0-1")
    assert want in node.run("apply", "-c", "all-3g.20gb", "--evict", *arguments, code=code).stderr
    assert node.layouts() == [SEVEN]
    assert len(run(node.kube.list(PODS)).objects) == 1


def test_evictions_need_a_kubelet_and_a_cluster(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=SEVEN), folder=tmp_path)
    arguments = ["mig", "apply", "-c", "all-3g.20gb", "--evict", "--node", "n1"]
    without = CliRunner().invoke(main, [*arguments, *NO_KUBELET], obj=NodeClients(driver=node.driver))
    assert "--evict: no kubelet at /nowhere/kubelet.sock: give --kubelet-socket: the kubelet's" in without.stderr
    missing = ["--kubeconfig", str(tmp_path / "none"), *NO_KUBELET]
    alone = CliRunner().invoke(main, [*arguments, *missing], obj=NodeClients(driver=node.driver, record=node.record))
    assert (without.exit_code, alone.exit_code) == (2, 2)
    assert "kubeconfig" in alone.stderr


def test_mode_only_switches_mig_and_leaves_instances(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=HALVES), gpu_facts(index=1), gpu_facts(index=2, layout=()), folder=tmp_path)
    arguments = ("apply", "-c", "all-1g.5gb", "--mode-only")
    assert node.json("assert", "-c", "all-1g.5gb", "--mode-only", code=1)["differences"] == [
        {"index": 1, "uuid": "GPU-1", "found": "MIG off", "expected": "MIG on"}
    ]
    planned = node.json(*arguments, "--dry-run")["gpus"]
    assert [each["steps"] for each in planned] == [[], [{"do": "switch MIG on", "disturbs": []}], []]
    assert [each["result"] for each in node.json(*arguments)["gpus"]] == ["unchanged", "done", "unchanged"]
    assert node.layouts() == [HALVES, (), ()]
    node.run("assert", "-c", "all-1g.5gb", "--mode-only")
    node.run("apply", "-c", "all-disabled", "--mode-only")
    assert node.layouts() == [None, None, None]


@pytest.mark.parametrize(
    ("gpu", "arguments", "code", "want"),
    [
        (gpu_facts(layout=HALVES), ("apply", "-c", "halves"), 2, "MIG configuration: 'halves' is not the name of"),
        (
            gpu_facts(layout=HALVES),
            ("apply",),
            2,
            "-c/--config: it is not given",
        ),
        (gpu_facts(layout=HALVES), ("apply", "-f", "missing.yaml"), 2, "missing.yaml: No such file"),
        (
            gpu_facts(lost=True, layout=HALVES),
            ("apply", "-c", "all-1g.5gb"),
            4,
            "impossible: the driver has lost GPU 0",
        ),
        (
            gpu_facts(pending=True),
            ("apply", "-c", "all-1g.5gb"),
            4,
            "needs reset: GPU 0: MIG mode changes to on at the next",
        ),
        (
            gpu_facts(layout=HALVES),
            ("restore", "--checkpoint", "none.json"),
            2,
            "none.json: there is no such file: write a checkpoint",
        ),
    ],
)
def test_refusals_say_what_to_do(
    gpu: GpuFacts, arguments: tuple[str, ...], code: int, want: str, tmp_path: Path
) -> None:
    node = Node(gpu, folder=tmp_path)
    assert want in node.run(*arguments, code=code).stderr
    assert node.layouts() == [gpu.layout]


def test_a_failed_step_is_reported_and_the_former_layout_restored(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=SEVEN), folder=tmp_path)
    node.driver.fail("create_instance", Unavailable("GPU 0", found="a fault", expected="no fault"))
    result = node.run("apply", "-f", str(node.file), "--checkpoint", str(tmp_path / "mig.json"), code=4)
    assert "failed: GPU 0: creating 3g.20gb at 0 failed: a fault" in result.stderr
    assert "the previous layout is in force" in result.stderr
    assert node.layouts() == [SEVEN]
    assert not (tmp_path / "mig.json").exists()


def test_a_checkpoint_that_cannot_be_written_is_said_beside_what_was_done(tmp_path: Path) -> None:
    node = Node(gpu_facts(), folder=tmp_path)
    (tmp_path / "file").touch()
    given = ("apply", "-c", "all-1g.5gb", "--checkpoint", str(tmp_path / "file" / "layouts.json"))
    result = node.run(*given, code=4)
    assert "done" in result.stdout
    assert "error: the layout is applied, but its checkpoint could not be written: " in result.stderr
    assert "its checkpoint could not be written" in result.stderr
    assert node.layouts() == [SEVEN]
    assert json.loads(node.run(*given, "-o", "json", code=4).stdout)["gpus"][0]["result"] == "unchanged"
    (tmp_path / "file").unlink()
    node.run(*given)
    assert (tmp_path / "file" / "layouts.json").exists()


def test_while_another_process_changes_a_gpu_nothing_is_done_and_it_is_named(tmp_path: Path) -> None:
    node = Node(gpu_facts(), gpu_facts(index=1), folder=tmp_path)

    async def beside() -> Result:
        async with NodeLocks(tmp_path / "state" / "locks").hold("GPU-1", by_s=0.0):
            return await asyncio.to_thread(node.run, "apply", "-c", "all-1g.5gb", code=5)

    result = asyncio.run(beside())
    assert "is changing its layout: run the command again when it has ended" in result.stderr
    assert f"` (pid {os.getpid()}, since 2" in result.stderr
    assert node.layouts() == [None, None]
    node.run("apply", "-f", str(node.file), "-c", "half-half")
    node.run("apply", "-c", "all-1g.5gb")
    assert node.layouts() == [SEVEN, SEVEN]


def test_where_there_can_be_no_lock_it_is_said(tmp_path: Path) -> None:
    node = Node(gpu_facts(), folder=tmp_path)
    (tmp_path / "state" / "locks").mkdir(parents=True)
    (tmp_path / "state" / "locks" / "GPU-0.lock").symlink_to(tmp_path)
    result = node.run("apply", "-c", "all-1g.5gb")
    assert "note: " in result.stderr
    assert "so nothing keeps other processes from changing the same GPU" in result.stderr
    assert node.layouts() == [SEVEN]


def test_who_is_not_root_has_locks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    locks = locks_in(None)

    async def hold() -> None:
        async with locks.hold("GPU-0", by_s=0.0):
            assert (tmp_path / "tessera" / "locks" / "GPU-0.lock").exists()

    asyncio.run(hold())


def test_a_file_with_several_documents_is_refused(tmp_path: Path) -> None:
    node = Node(gpu_facts(), folder=tmp_path)
    node.file.write_text(f"{FILE}---\n{FILE}")
    assert "2 documents: write one" in node.run("list", "-f", str(node.file), code=2).stderr


@pytest.mark.parametrize(
    ("gpu", "arguments", "code"),
    [
        (gpu_facts(layout=HALVES), ("-c", "all-3g.20gb"), 0),
        (gpu_facts(layout=HALVES), ("-c", "all-1g.5gb"), 1),
        (gpu_facts(layout=HALVES), ("-c", "all-1g.5gb", "--mode-only"), 0),
        (gpu_facts(), ("-c", "all-1g.5gb", "--mode-only"), 1),
        (gpu_facts(), ("-c", "all-1g.5gb", "--valid-config"), 0),
        (gpu_facts(), ("-c", "all-1g.6gb", "--valid-config"), 1),
        (gpu_facts(), ("-c", "all-1g.6gb"), 1),
        (gpu_facts(), ("-f", "missing.yaml", "--valid-config"), 1),
    ],
)
def test_assert_answers_with_its_exit_code(
    gpu: GpuFacts, arguments: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    Node(gpu, folder=tmp_path).run("assert", *arguments, code=code)


def test_assert_tells_what_differs(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=SEVEN[:2]), folder=tmp_path)
    assert node.json("assert", "-f", str(node.file), code=1) == {
        "configuration": "half-half",
        "applied": False,
        "differences": [{"index": 0, "uuid": "GPU-0", "found": "1g.5gb at 0, 1g.5gb at 1", "expected": "2 x 3g.20gb"}],
    }
    assert "1g.5gb at 0, 1g.5gb at 1" in node.run("assert", "-f", str(node.file), code=1).stdout
    assert node.run("assert", "-c", "all-enabled", "--mode-only").stdout == ""


def test_what_is_exported_can_be_applied_and_asserted(tmp_path: Path) -> None:
    node = Node(gpu_facts(layout=HALVES), gpu_facts(index=1), folder=tmp_path)
    node.file.write_text(node.run("export", "-c", "mine").stdout)
    node.run("assert", "-f", str(node.file), "-c", "mine")
    assert node.json("export")["mig-configs"]["current"][0]["mig-devices"] == {"3g.20gb": 2}


def test_what_is_written_down_comes_back_at_its_places(tmp_path: Path) -> None:
    layout = at(A100, ("1g.5gb", 3), ("3g.20gb", 4))
    node = Node(gpu_facts(layout=layout), folder=tmp_path)
    file = str(tmp_path / "mig.json")
    assert "2 instances of 1 GPU written to" in node.run("checkpoint", "--checkpoint", file).stdout
    assert node.json("checkpoint", "--checkpoint", file)["gpus"][0]["uuid"] == "GPU-0"
    node.driver.reset("GPU-0")
    planned = node.json("restore", "--checkpoint", file, "--dry-run")["gpus"][0]
    assert (planned["result"], len(planned["steps"])) == ("planned", 2)
    assert node.json("restore", "--checkpoint", file)["gpus"][0]["result"] == "done"
    assert node.layouts() == [layout]


def test_it_runs_on_simulated_gpus_and_a_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctypes.CDLL(str(library()))  # before pynvml asks for it: one of the same name that is there is not loaded again
    create_state(tmp_path / "state", ("A100-40GB", "T4"))
    monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TESSERA_MIG_STATE_DIR", str(tmp_path))

    def shown(*arguments: str, code: int = 0, socket: str = "/nowhere") -> str:
        result = CliRunner().invoke(main, ["mig", *arguments, "--kubelet-socket", socket])
        assert result.exit_code == code, result.output
        return result.stdout

    shown("apply", "-c", "all-balanced")
    shown("assert", "-c", "all-balanced")
    assert "3g.20gb at 4" in shown("list")
    (tmp_path / "kubelet.sock").write_text("no socket")
    shown("apply", "-c", "all-1g.5gb", code=4, socket=str(tmp_path / "kubelet.sock"))
    shown("assert", "-c", "all-balanced")


def test_a_gpu_that_was_lost_before_fails_what_is_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctypes.CDLL(str(library()))
    create_state(tmp_path / "state", ("A100-40GB", "A100-40GB"))
    monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TESSERA_MIG_STATE_DIR", str(tmp_path))
    (tmp_path / "second.yaml").write_text(FILE.replace("[0]", "[1]"))
    second = ("-f", str(tmp_path / "second.yaml"), "-c", "half-half")
    file = str(tmp_path / "layouts.json")

    def shown(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["mig", *arguments, *NO_KUBELET])
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())

    shown("checkpoint", "--checkpoint", file)
    with Machine(tmp_path / "state") as machine:
        machine.lose(0)
    text = shown("apply", "-c", "all-1g.5gb", "--checkpoint", str(tmp_path / "none"), code=4)
    assert "0 impossible" in text
    assert "1 A100-40GB done" in text
    assert "1 of 2 GPUs: impossible: the driver has lost GPU 0; reset it or reboot the node" in text
    assert not (tmp_path / "none").exists(), "it would lack a GPU"
    assert "0 the GPU is lost" in shown("assert", "-c", "all-1g.5gb", code=1)
    assert "0 impossible" in shown("apply", "-c", "all-1g.5gb", "--dry-run", code=4)
    assert '{ "index": 0,' in shown("apply", "-c", "all-1g.5gb", "--dry-run", "-o", "json", code=4)
    assert "lost GPU 0" in shown("restore", "--checkpoint", file, code=4)
    shown("apply", *second)
    shown("assert", *second)


@pytest.mark.parametrize("command", ["list", "apply", "assert", "export", "checkpoint", "restore"])
def test_help_has_an_example(command: str) -> None:
    assert f"tessera mig {command}" in CliRunner().invoke(main, ["mig", command, "--help"]).stdout
