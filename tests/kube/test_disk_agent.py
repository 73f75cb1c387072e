"""The disk agent with the chart's rights and admission policy: what it does, and what its stolen token cannot do."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.diskworlds import attached
from tessera.clients.kube import NODES, HttpKube
from tessera.errors import TesseraError, Unavailable
from testbed.cluster import Cluster
from testbed.deploy import NAMESPACE, objects
from testbed.processes import until

pytestmark = pytest.mark.anyio

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "disk-agent", "namespace": NAMESPACE},
    "spec": {
        "nodeName": "own",
        "serviceAccountName": "tessera-disks",
        "containers": [{"name": "disks", "image": "registry.example/tessera"}],
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disks")


@pytest.fixture(scope="module")
def installed(control_plane: Cluster, folder: Path) -> Iterator[str]:
    """Give the path of a kubeconfig with the token of the disk agent's pod on node `own`."""
    made = objects(
        "rbac/disks.yaml", "admission/disks.yaml", values={"disks": {"enabled": True, "folder": str(folder)}}
    )
    nodes: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
        for name in ("own", "other")
    ]
    control_plane.apply(*made, *nodes, POD)
    name, uid = POD["metadata"]["name"], control_plane.get("pod", "disk-agent", "-n", NAMESPACE)["metadata"]["uid"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}", f"--bound-object-uid={uid}")
    token = control_plane.kubectl("create", "token", "tessera-disks", "-n", NAMESPACE, *bound).strip()
    content = json.loads(control_plane.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path = folder / "disks.kubeconfig"
    path.write_text(json.dumps(content))

    def refuses() -> bool:
        try:
            control_plane.kubectl("label", "node", "other", "a=b", "--dry-run=server", f"--kubeconfig={path}")
        except Unavailable as error:
            return "disk agent" in str(error)
        return False

    until("the policy is in force", refuses, timeout_s=60)
    yield str(path)
    control_plane.kubectl("delete", "pod", "disk-agent", "-n", NAMESPACE, "--force", "--grace-period=0")
    for node in nodes:
        control_plane.kubectl("delete", "node", node["metadata"]["name"])
    for each in reversed(made):
        control_plane.kubectl("delete", each["kind"], each["metadata"]["name"], f"--namespace={NAMESPACE}")


@pytest.fixture
def disk(folder: Path) -> Iterator[str]:
    """Give a blank block device."""
    with attached(folder / "disk.img") as device:
        yield device
        subprocess.run(("umount", "--quiet", folder / "tessera"), check=False)


@pytest.fixture
def agent(installed: str, disk: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Give the real program at work, with the token of its pod."""
    options = (f"--mount={folder}/tessera", f"--select={disk}", f"--state-dir={folder}/state", "--volumes=2")
    command = ("disk-agent", "--node=own", *options, "--interval-s=0.3", f"--kubeconfig={installed}")
    start = (sys.executable, "-c", "import sys; from tessera.cli import main; sys.exit(main())", *command)
    with (folder / "agent.log").open("wb") as log, subprocess.Popen(start, stdout=log, stderr=log) as process:
        yield process
        process.terminate()
        assert process.wait(20) == 0


def volumes(cluster: Cluster) -> dict[str, Any]:
    found = cluster.get("pv", "-l", "tessera.dev/node-digest")["items"]
    return {each["spec"]["local"]["path"].rpartition("/")[2]: each for each in found}


def log_of(folder: Path) -> str:
    return (folder / "agent.log").read_text()[-2000:]


def test_a_blank_disk_becomes_volumes_that_nobody_finds_files_of_others_on(
    control_plane: Cluster, agent: "subprocess.Popen[bytes]", folder: Path
) -> None:
    def wait(what: str, ready: Callable[[], bool]) -> None:
        until(what, ready, timeout_s=60, found=partial(log_of, folder))

    # 1. The disk is formatted, mounted and said to be ready; two volumes are offered.
    wait("two volumes", lambda: sorted(volumes(control_plane)) == ["0", "1"])
    node = control_plane.get("node", "own")
    assert node["metadata"]["labels"]["tessera.dev/disks"] == "ready"
    assert [each["status"] for each in node["status"]["conditions"] if each["type"] == "TesseraDisksReady"] == ["True"]
    assert (folder / "tessera").is_mount()
    # 2. A volume whose claim is gone is erased before it is offered again.
    first = volumes(control_plane)["0"]
    inside = folder / "tessera/volumes/0"
    (inside / "secret").write_text("x")
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "gone", "namespace": "default", "uid": "u-1"}
    name = first["metadata"]["name"]
    control_plane.kubectl("patch", "pv", name, "--type=merge", "-p", json.dumps({"spec": {"claimRef": claim}}))
    wait(
        "another volume", lambda: volumes(control_plane).get("0", first)["metadata"]["uid"] != first["metadata"]["uid"]
    )
    assert list(inside.iterdir()) == []
    # 3. The program goes: what it mounted stays.
    agent.terminate()
    agent.wait(20)
    assert (folder / "tessera").is_mount()
    for each in volumes(control_plane).values():
        control_plane.kubectl("delete", "pv", each["metadata"]["name"], "--wait=false")


def volume(folder: Path, node: str = "own", host: str = "own", path: str = "tessera/volumes/9") -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"forged-{time.time_ns()}", "annotations": {"tessera.dev/node": node}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Mi"},
            "local": {"path": f"{folder}/{path}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            "storageClassName": "tessera-local",
        },
    }


def test_a_stolen_token_makes_volumes_of_its_own_node_and_folder_alone(
    control_plane: Cluster, installed: str, folder: Path
) -> None:
    def create(body: dict[str, Any]) -> None:
        control_plane.kubectl("create", "-f", "-", f"--kubeconfig={installed}", input_text=json.dumps(body))

    own = volume(folder)
    create(own)
    refused = {
        "another node": volume(folder, node="other"),
        "its own, seen on another": volume(folder, host="other"),
        "another folder": volume(folder, path="elsewhere/volumes/9"),
        "a way out": volume(folder, path="tessera/volumes/../../../etc"),
    }
    anywhere, foreign, host = volume(folder), volume(folder), volume(folder)
    anywhere["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"] = [
        {"key": "pool", "operator": "Exists"}
    ]
    foreign["spec"]["storageClassName"] = "other"
    host["spec"]["hostPath"] = {"path": host["spec"].pop("local")["path"]}
    refused |= {"any node": anywhere, "another class": foreign, "a host path": host}
    for case, body in refused.items():
        with pytest.raises(Unavailable, match=r"ValidatingAdmissionPolicy 'tessera-disks'|must not contain '\.\.'"):
            create(
                {
                    **body,
                    "metadata": {**body["metadata"], "annotations": body["metadata"]["annotations"] | {"case": case}},
                }
            )
    theirs = volume(folder, node="other")
    control_plane.apply(theirs)
    with pytest.raises(Unavailable, match="may not write to PersistentVolume"):
        control_plane.kubectl("delete", "pv", theirs["metadata"]["name"], f"--kubeconfig={installed}")
    control_plane.kubectl("delete", "pv", own["metadata"]["name"], "--wait=false", f"--kubeconfig={installed}")
    control_plane.kubectl("delete", "pv", theirs["metadata"]["name"], "--wait=false")


CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "the label of another node": ("other", {"metadata": {"labels": {"tessera.dev/disks": "ready"}}}, ""),
    "another label": ("own", {"metadata": {"labels": {"pool": "gpu"}}}, ""),
    "an annotation": ("own", {"metadata": {"annotations": {"a": "b"}}}, ""),
    "a taint": ("own", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, ""),
    "cordon": ("own", {"spec": {"unschedulable": True}}, ""),
    "capacity": ("own", {"status": {"capacity": {"example.com/x": "7"}}}, "status"),
    "allocatable": ("own", {"status": {"allocatable": {"example.com/x": "7"}}}, "status"),
    "another condition": ("own", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "status"),
    "an address": ("own", {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}, "status"),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_a_stolen_token_changes_nothing_else_of_a_node(installed: str, case: str) -> None:
    node, body, part = CHANGES[case]
    async with HttpKube.connect(Path(installed)) as kube:
        with pytest.raises(TesseraError, match="disk agent"):
            await kube.patch(NODES, node, body, subresource="status" if part else "")
