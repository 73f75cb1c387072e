"""What is found wrong on a node, and that each failure says what to do."""

import msgspec
import pytest

from builders.nodefacts import gpu, node_of
from tessera.core.gpu.inventory import ComputeMode, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.node.doctor import (
    Check,
    CheckResult,
    Daemon,
    HostFacts,
    NodeFolder,
    NodeMarks,
    RuntimeFacts,
    Socket,
    Toolkit,
    checks,
)
from tessera.core.node.liststrategies import ListStrategies

FINE = NodeFolder(path="/f", exists=True, writable=True, free_mib=1000)
READ_ONLY = msgspec.structs.replace(FINE, writable=False)
MISSING = NodeFolder(path="/f")
BY_MOUNTS = ListStrategies(strategies=("volume-mounts",))
BY_ENVIRONMENT = ListStrategies(strategies=("envvar",))
SOUND = HostFacts(
    inventory=node_of(gpu(0), gpu(1, "A100-40GB", "all-3g.20gb")),
    mps_desired=True,
    mps_program="/usr/bin/nvidia-cuda-mps-control",
    shm=FINE,
    mps_root=MISSING,
    runtime=RuntimeFacts(socket=Socket(path="/c.sock")),
    list_strategies=ListStrategies(strategies=("cdi-cri",)),
    driver_spec="/etc/cdi/a.yaml",
    toolkit=Toolkit(config="/t", accepts_environment=False),
    cdi_folders=(MISSING, FINE),
    cdi_devices=(("/etc/cdi/a.yaml", "nvidia.com/gpu=0"), ("/var/run/cdi/a.yaml", "nvidia.com/gpu=0")),
    plugin_folder=FINE,
    kubelet=(Socket(path="/k.sock"),),
    generation="a@1",
    node=NodeMarks(
        labels={"nvidia.com/gpu.count": "2", "nvidia.com/mig.config.state": "success"},
        annotations={"tessera.dev/applied-config": "a@1"},
    ),
)


def host_facts(**more: object) -> HostFacts:
    return msgspec.structs.replace(SOUND, **more)


def found(observed: HostFacts, *verdicts: CheckResult) -> list[tuple[str, str]]:
    return [(each.name, each.found) for each in checks(observed) if each.verdict in verdicts]


def runtime(**more: object) -> RuntimeFacts:
    return msgspec.structs.replace(SOUND.runtime, **more)


def labeled(**labels: str) -> NodeMarks:
    keys = {
        "state": "nvidia.com/mig.config.state",
        "count": "nvidia.com/gpu.count",
        "strategy": "nvidia.com/mig.strategy",
    }
    return NodeMarks(labels={keys[key]: value for key, value in labels.items()}, annotations={})


def test_a_sound_node_has_no_complaint() -> None:
    assert {each.verdict for each in checks(SOUND)} == {CheckResult.OK}
    assert len(checks(SOUND)) == 15


@pytest.mark.parametrize(
    ("fix", "want"), [("load it", "load it"), ("", "install NVIDIA's driver, or let the process see")]
)
def test_why_there_is_no_driver_has_one_fix(fix: str, want: str) -> None:
    found = checks(host_facts(inventory=None, driver_problem="not loaded", driver_fix=fix))[0]
    assert (found.found, found.advice.startswith(want)) == ("not loaded", True)


INCOMPLETE = (Placement(0, 4, "3g.20gb"),)
SERVED = (Daemon(key="GPU-0", gpu="GPU-0", exclusive=True),)
EXCLUSIVE = node_of(gpu(0, compute_mode=ComputeMode.EXCLUSIVE_PROCESS))

FAILED: dict[str, tuple[HostFacts, list[tuple[str, str]]]] = {
    "no driver": (
        host_facts(inventory=None, driver_problem="no libnvidia-ml.so.1"),
        [("driver", "no libnvidia-ml.so.1")],
    ),
    "no GPU": (host_facts(inventory=node_of(), node=labeled()), [("driver", "driver 580.0 shows no GPU")]),
    "a GPU that was lost before": (
        host_facts(inventory=msgspec.structs.replace(node_of(gpu(0)), unseen=(1,))),
        [("driver", "GPU 1 was lost before the first observation")],
    ),
    "a lost GPU": (host_facts(inventory=node_of(gpu(0, lost=True), gpu(1))), [("driver", "GPU 0 (GPU-0) is lost")]),
    "MIG waits for a reset": (
        host_facts(
            inventory=node_of(
                gpu(0, "A100-40GB", mig=MigMode(current=False, pending=True)),
                gpu(1, "A100-40GB", mig=MigMode(current=True, pending=False)),
            )
        ),
        [("mig", "GPU 0: MIG is off, and on after a reset"), ("mig", "GPU 1: MIG is on, and off after a reset")],
    ),
    "a GPU that admits nobody": (
        host_facts(inventory=node_of(gpu(0, compute_mode=ComputeMode.PROHIBITED), gpu(1))),
        [("compute-mode", "GPU 0 admits no process")],
    ),
    "a daemon that can be evaded": (
        host_facts(daemons=SERVED),
        [("compute-mode", "GPU 0 has an MPS daemon but admits processes that are no clients")],
    ),
    "no program": (
        host_facts(mps_program=""),
        [("mps-program", "nvidia-cuda-mps-control is not on PATH, so no MPS is offered")],
    ),
    "another user": (host_facts(user_id=1000), [("mps-user", "user 1000")]),
    "no shared memory": (host_facts(shm=MISSING), [("mps-shm", "/f is not there")]),
    "shared memory that is read-only": (host_facts(shm=READ_ONLY), [("mps-shm", "/f is read-only")]),
    "shared memory that is full": (
        host_facts(shm=msgspec.structs.replace(FINE, free_mib=63)),
        [("mps-shm", "/f has 63 MiB free")],
    ),
    "pipes that are read-only": (host_facts(mps_root=READ_ONLY), [("mps-pipes", "/f is read-only")]),
    "pipes whose names are too long": (
        host_facts(mps_root=NodeFolder(path="/" + "x" * 60)),
        [("mps-pipes", f"/{'x' * 60} is too long for sockets")],
    ),
    "a daemon that does not serve": (
        host_facts(daemons=(Daemon(key="GPU-1", gpu="GPU-1", exclusive=False, problem="silence"),), mps_desired=False),
        [("mps-daemon", "GPU-1: silence")],
    ),
    "a process that is no client": (
        host_facts(
            inventory=EXCLUSIVE,
            node=None,
            daemons=(msgspec.structs.replace(SERVED[0], processes=frozenset({7, 8})),),
            processes=(("GPU-0", 7), ("GPU-0", 9), ("GPU-1", 9)),
        ),
        [("mps-strangers", "process 9 is on GPU-0 and no client of its MPS daemon")],
    ),
    "a refused file": (host_facts(config_problem="line 3: x"), [("configuration", "line 3: x")]),
    "a runtime without CDI": (
        host_facts(runtime=runtime(config="/c", cdi=False)),
        [("runtime-cdi", "/c switches CDI off")],
    ),
    "a broken runtime configuration": (
        host_facts(runtime=runtime(config="/c", problem="line 1")),
        [("runtime-cdi", "/c: line 1")],
    ),
    "CDI files that are no files": (host_facts(cdi_problems=("a: x",)), [("cdi", "a: x")]),
    "no folder for CDI": (host_facts(cdi_folders=(FINE, MISSING)), [("cdi", "/f is not there")]),
    "a read-only folder for CDI": (host_facts(cdi_folders=(READ_ONLY,)), [("cdi", "/f is read-only")]),
    "a device defined twice, whoever hands it over": (
        host_facts(cdi_devices=(("/d/a", "x/y=0"), ("/d/b", "x/y=0")), list_strategies=None),
        [("cdi", "x/y=0 is defined by /d/a and /d/b")],
    ),
    "a device defined twice": (
        host_facts(cdi_devices=(("/d/a", "x/y=0"), ("/d/b", "x/y=0"))),
        [("cdi", "x/y=0 is defined by /d/a and /d/b")],
    ),
    "no folder for plugins": (host_facts(plugin_folder=MISSING), [("kubelet", "/f is not there")]),
    "a read-only folder for plugins": (host_facts(plugin_folder=READ_ONLY), [("kubelet", "/f is read-only")]),
    "no kubelet": (
        host_facts(kubelet=(Socket(path="/k", problem="Connection refused"),)),
        [("kubelet", "/k: Connection refused")],
    ),
    "a layout that failed": (
        host_facts(node=labeled(state="failed"), generation=""),
        [("node", "nvidia.com/mig.config= is not applied: state failed")],
    ),
}


@pytest.mark.parametrize(("observed", "want"), FAILED.values(), ids=FAILED)
def test_what_fails(observed: HostFacts, want: list[tuple[str, str]]) -> None:
    assert found(observed, CheckResult.FAILED) == want
    assert all(each.advice for each in checks(observed) if each.verdict in {CheckResult.FAILED, CheckResult.WARNING})


WARNED: dict[str, tuple[HostFacts, list[tuple[str, str]]]] = {
    "a note of the driver": (
        host_facts(inventory=msgspec.structs.replace(node_of(gpu(0), gpu(1)), notes=("odd",))),
        [("driver", "odd")],
    ),
    "an incomplete instance": (
        host_facts(inventory=node_of(gpu(0, "A100-40GB", "all-enabled", incomplete=INCOMPLETE), gpu(1))),
        [("mig", "GPU 0: 3g.20gb at 0 has no compute instance of its size")],
    ),
    "exclusive without a daemon": (
        host_facts(inventory=EXCLUSIVE, node=labeled(), generation=""),
        [("compute-mode", "GPU 0 admits one process, and no MPS daemon serves it")],
    ),
    "exclusive with its daemon": (host_facts(inventory=EXCLUSIVE, daemons=SERVED, node=labeled(), generation=""), []),
    "a note about files": (host_facts(config_notes=("x",)), [("configuration", "x")]),
    "no containerd": (
        host_facts(runtime=RuntimeFacts(socket=Socket(path="/c", problem="No such file"))),
        [("runtime", "/c: No such file")],
    ),
    "containerd 1 that does not say": (
        host_facts(runtime=runtime(config="/c", version=2)),
        [("runtime-cdi", "/c does not say whether CDI is on")],
    ),
    "an agent without hostPID": (host_facts(sees_pods=False), [("processes", "those of other pods are not visible")]),
    "containerd 2": (host_facts(runtime=runtime(config="/c", version=3)), []),
    "CDI switched on": (host_facts(runtime=runtime(config="/c", version=2, cdi=True)), []),
    "an annotation that is missing": (
        host_facts(node=labeled(count="2")),
        [("node", "tessera.dev/applied-config is missing, the files are a@1")],
    ),
    "a count that is wrong": (
        host_facts(node=labeled(count="8"), generation=""),
        [("node", "nvidia.com/gpu.count=8, the driver reports 2")],
    ),
    "instances are counted under strategy single": (
        host_facts(node=labeled(count="14", strategy="single"), generation=""),
        [],
    ),
    "nothing to compare the count with": (host_facts(node=labeled(count="8"), generation="", inventory=None), []),
}


@pytest.mark.parametrize(("observed", "want"), WARNED.values(), ids=WARNED)
def test_what_warns(observed: HostFacts, want: list[tuple[str, str]]) -> None:
    assert found(observed, CheckResult.WARNING) == want


def test_what_is_skipped_and_what_is_said_of_nothing() -> None:
    nothing = host_facts(mps_desired=False, node=None, generation="", mps_root=FINE)
    assert found(nothing, CheckResult.SKIPPED) == [("mps", "no GPU is shared by MPS"), ("node", "no node was named")]
    assert ("configuration", "no files: each GPU is one device") in found(nothing, CheckResult.OK)
    refused = checks(host_facts(node=None, node_problem="forbidden"))[-1]
    assert refused == Check(name="node", verdict=CheckResult.SKIPPED, found="forbidden", advice="see the reason")
    assert ("mps-pipes", "/f") in found(host_facts(mps_root=FINE), CheckResult.OK)
    assert ("cdi", "0 devices in ") in found(host_facts(cdi_folders=(), cdi_devices=()), CheckResult.OK)


NO_CDI = "the device list strategy does not use CDI"
UNUSED: dict[str, tuple[HostFacts, list[tuple[str, str]]]] = {
    "a fresh node has no folder": (
        host_facts(cdi_folders=(MISSING, MISSING)),
        [("runtime-cdi", NO_CDI), ("cdi", f"/f is not there; {NO_CDI}")],
    ),
    "containerd has it switched off": (host_facts(runtime=runtime(config="/c", cdi=False)), [("runtime-cdi", NO_CDI)]),
    "containerd 1 does not say": (host_facts(runtime=runtime(config="/c", version=2)), [("runtime-cdi", NO_CDI)]),
    "containerd has it switched on": (host_facts(runtime=runtime(config="/c", cdi=True)), []),
}


@pytest.mark.parametrize(("observed", "want"), UNUSED.values(), ids=UNUSED)
def test_without_a_cdi_strategy_nothing_about_cdi_fails(observed: HostFacts, want: list[tuple[str, str]]) -> None:
    mounts = msgspec.structs.replace(SOUND.toolkit, accepts_mounts=True)
    unused = msgspec.structs.replace(observed, list_strategies=BY_MOUNTS, toolkit=mounts, driver_spec="")
    assert found(unused, CheckResult.SKIPPED) == want
    assert found(unused, CheckResult.FAILED, CheckResult.WARNING) == []


ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
OPEN = Toolkit(config="/t")
CLOSED = Toolkit(config="/t", accepts_environment=False)
HANDED_OVER: dict[str, tuple[HostFacts, CheckResult, str, str]] = {
    "any pod's own list counts": (
        host_facts(toolkit=OPEN),
        CheckResult.WARNING,
        f"{ENVIRONMENT} is true: a pod that sets NVIDIA_VISIBLE_DEVICES itself sees any GPU",
        "set it to false in /t, or do not make that runtime the default; see docs/security.md",
    ),
    "any pod's own list counts, and devices get it": (
        host_facts(toolkit=OPEN, list_strategies=BY_ENVIRONMENT),
        CheckResult.WARNING,
        f"{ENVIRONMENT} is true: a pod that sets NVIDIA_VISIBLE_DEVICES itself sees any GPU",
        "configure deviceListStrategy cdi-cri, then set it to false in /t; see docs/security.md",
    ),
    "the environment hands over nothing": (
        host_facts(toolkit=CLOSED, list_strategies=BY_ENVIRONMENT),
        CheckResult.FAILED,
        f"{ENVIRONMENT} is false, so envvar has no effect",
        "configure deviceListStrategy cdi-cri or volume-mounts",
    ),
    "mounts hand over nothing": (
        host_facts(toolkit=CLOSED, list_strategies=BY_MOUNTS),
        CheckResult.FAILED,
        "accept-nvidia-visible-devices-as-volume-mounts is not true, so volume-mounts has no effect",
        "set accept-nvidia-visible-devices-as-volume-mounts = true in /t",
    ),
    "mounts hand over": (
        host_facts(toolkit=msgspec.structs.replace(CLOSED, accepts_mounts=True), list_strategies=BY_MOUNTS),
        CheckResult.OK,
        "/t ignores NVIDIA_VISIBLE_DEVICES of unprivileged containers",
        "",
    ),
    "a broken file": (
        host_facts(toolkit=Toolkit(config="/t", problem="line 1")),
        CheckResult.WARNING,
        "/t: line 1",
        "correct the file, or mount it into the agent",
    ),
    "no file": (
        host_facts(toolkit=Toolkit()),
        CheckResult.SKIPPED,
        "no configuration of NVIDIA's container runtime was found",
        f"where NVIDIA's container runtime is installed, set {ENVIRONMENT} = false in its configuration",
    ),
}


@pytest.mark.parametrize("case", HANDED_OVER)
def test_whether_nvidias_runtime_heeds_what_a_pod_says(case: str) -> None:
    observed, verdict, text, advice = HANDED_OVER[case]
    (check,) = (each for each in checks(observed) if each.name == "nvidia-runtime")
    assert check == Check(name="nvidia-runtime", verdict=verdict, found=text, advice=advice)


DEVICE_LIST: dict[str, tuple[ListStrategies | None, CheckResult, str, str]] = {
    "cdi-cri": (SOUND.list_strategies, CheckResult.OK, "cdi-cri", ""),
    "several": (ListStrategies(strategies=("envvar", "cdi-cri")), CheckResult.OK, "envvar, cdi-cri", ""),
    "a node that cannot": (
        ListStrategies(strategies=("envvar",), fallback="it is old", advice="upgrade it"),
        CheckResult.WARNING,
        "envvar and not cdi-cri: it is old",
        "upgrade it; see docs/security.md",
    ),
    "nobody says": (
        None,
        CheckResult.SKIPPED,
        "no strategy is configured, and no node was named",
        "pass --node to check what it supports",
    ),
}


@pytest.mark.parametrize("case", DEVICE_LIST)
def test_how_devices_are_handed_over(case: str) -> None:
    chosen, verdict, text, advice = DEVICE_LIST[case]
    (check,) = (each for each in checks(host_facts(list_strategies=chosen)) if each.name == "device-list")
    assert check == Check(name="device-list", verdict=verdict, found=text, advice=advice)


def test_cdi_without_the_drivers_libraries_warns() -> None:
    (check,) = (each for each in checks(host_facts(driver_spec="")) if each.verdict is CheckResult.WARNING)
    assert (check.name, check.advice) == (
        "cdi-driver",
        "run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    )
