"""`tessera doctor` on a simulated node, as a program of its own."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.agent.doctor import DoctorPaths
from tessera.sim.nvmlsim import create_state, environment


@pytest.fixture
def root() -> Iterator[Path]:
    # Short, because the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="doc") as name:
        yield Path(name)


def doctor(root: Path, *arguments: str, gpus: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "NODE_NAME"))}
    if gpus:
        environ |= environment(root / "gpus")
    else:
        # Whatever the machine has, the library is not found.
        environ |= {"LD_LIBRARY_PATH": str(root), "TESSERA_NVMLSIM_STATE": ""}
    environ |= variables
    command = [sys.executable, "-c", "from tessera.cli import main; main()", "doctor", "--root", str(root), *arguments]
    return subprocess.run(command, check=False, env=environ, capture_output=True, text=True, timeout=60)


def test_a_node_in_order_and_what_is_missing_on_another(root: Path) -> None:
    create_state(root / "gpus", ["A100-40GB", "T4"])
    bare = doctor(root)
    assert bare.returncode == 1
    assert "driver" in bare.stdout
    assert "start the kubelet; mount the folder of the socket" in bare.stdout
    places = DoctorPaths().under(root)
    for folder in (places.shm, places.plugins, places.pod_resources.parent):
        folder.mkdir(parents=True)
    policy = root / "policy.yaml"
    policy.write_text("apiVersion: tessera.dev/v1alpha1\nkind: NodePolicy\ngpus: [{sharing: auto}]\n")
    servers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for server, path in zip(servers, (places.plugins / "kubelet.sock", places.pod_resources), strict=True):
        server.bind(str(path))
        server.listen()
    try:
        sound = doctor(root, "-o", "json", TESSERA_AGENT_NODE_POLICY=str(policy))
        assert sound.returncode == 0, sound.stdout
    finally:
        for server in servers:
            server.close()
    verdicts = {(each["name"], each["verdict"]) for each in json.loads(sound.stdout)}
    assert {("driver", "ok"), ("mps-program", "ok"), ("runtime", "warning"), ("node", "skipped")} <= verdicts
    assert "failed" not in {verdict for _, verdict in verdicts}
    assert {"name", "verdict", "found", "advice"} == set(json.loads(sound.stdout)[0])


def test_without_a_driver_it_says_what_to_do(root: Path) -> None:
    got = doctor(root, gpus=False)
    assert got.returncode == 1
    assert got.stdout.count("let the process see libnvidia-ml.so.1") == got.stdout.count("install NVIDIA") == 1
    assert got.stdout.rstrip().splitlines()[-1].endswith("skipped")


def test_a_cluster_that_cannot_be_reached_is_named(root: Path) -> None:
    got = doctor(root, "--node", "n1", "--kubeconfig", str(root / "none"), gpus=False)
    assert got.returncode == 2
    assert "kubeconfig" in got.stderr
