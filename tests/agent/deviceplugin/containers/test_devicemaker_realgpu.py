"""What a container is given of a real GPU is enough for CUDA, and each part of it is needed.

A program runs where `/dev` and the folder of the driver hold only what the CDI specification names: in a mount
namespace of its own, as a container's.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.shares import whole
from harness.realgpu import PROGRAM, CudaProgram, RealGpu, note
from tessera.agent.cdisupport import DRIVER_SPECS, first_file
from tessera.agent.deviceplugin.containers.changerequests import ChangeRequests
from tessera.agent.deviceplugin.containers.devicemaker import DeviceMaker, PluginPaths
from tessera.api import documents
from tessera.api.nvidia import cdi
from tessera.core.deviceplugin.containers.injection import GPU_KIND, driver_mount

pytestmark = [pytest.mark.anyio, pytest.mark.gpu]
_PLAIN = ("null", "zero", "full", "random", "urandom", "tty", "shm")
_LINES = "import ctypes; ctypes.CDLL('libcuda.so.1'); print(open('/proc/self/maps').read())"


async def specification(real_gpu: RealGpu, folder: str) -> dict[str, Any]:
    """Return the CDI specification that the agent writes for the GPU."""
    async with await real_gpu.driver() as driver:
        inventory = await driver.inventory()
    facts = inventory.gpus[0]
    maker = DeviceMaker(PluginPaths(), ChangeRequests(), complain=lambda error: pytest.fail(str(error)))
    maker.observe(inventory)
    made = maker.edits([whole(0, facts.memory_mib)], {0: facts})
    spec = first_file(DRIVER_SPECS)
    libraries = cdi.mounted_driver(driver_mount(folder))
    if spec is not None:
        (document,) = documents.read(str(spec), spec.read_bytes())
        libraries = cdi.read_driver_edits(document)
    text = cdi.write(GPU_KIND, {facts.uuid: msgspec.structs.replace(made, env=())}, libraries)
    return dict(json.loads(text))


def driver_folder() -> Path:
    """Return the folder with the driver's libraries, as the agent's `--driver-folder` names it."""
    maps = subprocess.run([sys.executable, "-c", _LINES], capture_output=True, text=True, check=True, timeout=60).stdout
    found = next(line.split()[-1] for line in maps.splitlines() if "/libcuda.so" in line)
    return Path(found).parent


def here() -> list[str]:
    """Return the device nodes of the driver on this machine."""
    return sorted(str(each) for each in Path("/dev").glob("nvidia*") if each.is_char_device())


def contained(spec: dict[str, Any], hidden: Path | None, without: str = "") -> tuple[str, ...]:
    """Return the command that runs the CUDA program with only the specification's nodes and mounts."""
    edits = [spec.get("containerEdits", {}), spec["devices"][0]["containerEdits"]]
    nodes = [each.get("hostPath", each["path"]) for edit in edits for each in edit.get("deviceNodes", ())]
    mounts = [(each["hostPath"], each["containerPath"]) for edit in edits for each in edit.get("mounts", ())]
    lines = [
        "set -e",
        "mount --make-rprivate /",
        "mkdir -p /tmp/own/dev /tmp/own/mounts",
        "mount -t tmpfs none /tmp/own",
    ]
    lines += ["mkdir -p /tmp/own/dev /tmp/own/mounts"]
    for node in (*(f"/dev/{name}" for name in _PLAIN), *nodes):
        if node != without:
            at = f"/tmp/own/dev/{Path(node).name}"
            lines += [f"[ -d {node} ] && mkdir -p {at} || : > {at}", f"mount --bind {node} {at}"]
    for number, (host, _) in enumerate(mounts):
        at = f"/tmp/own/mounts/{number}"
        lines += [f"[ -d {host} ] && mkdir {at} || : > {at}", f"mount --bind {host} {at}"]
    if hidden is not None:
        lines += [f"mount -t tmpfs none {hidden}"]
    for number, (host, path) in enumerate(mounts):
        if host != without:
            at = f"/tmp/own/mounts/{number}"
            lines += [f"mkdir -p {shlex.quote(str(Path(path).parent if Path(host).is_file() else Path(path)))}"]
            lines += [f": >> {path}"] if Path(host).is_file() else []
            lines += [f"mount --bind {at} {path}"]
    # A container may make no device nodes; CUDA, as root, makes those that are missing where it can.
    lines += ["mount --rbind /tmp/own/dev /dev", "mount -o remount,bind,ro /dev"]
    lines += [f"exec {sys.executable} {PROGRAM}"]
    return ("unshare", "--mount", "bash", "-c", "\n".join(lines))


async def test_a_program_with_these_nodes_and_this_folder_alone_uses_the_gpu(real_gpu: RealGpu) -> None:
    library = driver_folder()
    folder = library.parent if library.name in {"lib64", "lib"} else library
    own = folder != Path("/usr") and "linux-gnu" not in folder.name
    spec = await specification(real_gpu, str(folder))
    nodes = [each["path"] for each in spec["devices"][0]["containerEdits"]["deviceNodes"]]
    note(nodes=nodes, dev=here(), library=library, mounts=spec.get("containerEdits"), spec=first_file(DRIVER_SPECS))
    assert set(nodes) <= set(here())
    if not own:  # the driver's libraries are among the system's: only the nodes can be left out
        spec.pop("containerEdits")
    hidden = folder if own else None
    env = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/nvidia/lib"}
    with CudaProgram(env, contained(spec, hidden)) as one:
        opened = one.must("open")
        one.must("alloc", mib=1024)
        rounds = one.must("busy", seconds=0.5)
        note(opened=opened, rounds=rounds)
        assert opened["uuid"] == spec["devices"][0]["name"]
    answers = {}
    for part in (*((str(folder),) if own else ()), *nodes):
        with CudaProgram(env, contained(spec, hidden, without=part)) as one:
            answers[part] = one.ask("open")["result"]
    note(without=answers)
    needed = {part for part, result in answers.items() if result != 0}
    assert {*((str(folder),) if own else ()), nodes[0], "/dev/nvidiactl", "/dev/nvidia-uvm"} <= needed
