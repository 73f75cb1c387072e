"""Tessera's image under the real kubelet, by the objects of the chart: what works from the checkout works from it."""

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conformance.registrysuite import filled
from conformance.runtimesuite import PASSWORD, USER
from harness.diskworlds import attached
from kube.modelstore import small_disk
from kube.observing import mps_daemons
from kube.pods import busybox, log, phase
from kube.registry import HASHED, RealRegistry, serve_on
from tessera import __version__
from tessera.clients.runtime import CriRuntime
from tessera.errors import Unavailable
from testbed import installed
from testbed.cluster import Cluster
from testbed.deploy import NAMESPACE, objects
from testbed.processes import until
from testbed.tesseraimage import tessera_image

GPUS = ("2xA100-40GB",)
EXAMPLES = Path(__file__).parents[2] / "examples" / "8-on-a-cluster" / "pods.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "image.md"
RUNNING = ("six", "hard", "exact", "gpushare")
AGENT = "daemonset/tessera-agent"
_WAIT_S = 240
WHO = """
import os, pathlib, sys
for one in pathlib.Path('/proc').glob('[0-9]*'):
    try:
        words = (one / 'cmdline').read_bytes().split(b'\\0')
        groups = (one / 'cgroup').read_text().replace('_', '-')
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        continue
    if sys.argv[1] in groups and any(word.endswith(b'/tessera') for word in words):
        status = (one / 'status').read_text()
        rights = status.partition('CapEff:')[2].split()[0].strip('0') or 'no capabilities'
        root = 'read-only' if os.statvfs(one / 'root').f_flag & os.ST_RDONLY else 'writable'
        print(status.partition('Uid:')[2].split()[0], rights, root, sep=', ')
"""
KILL_AGENT = """
import os, pathlib, signal
for one in pathlib.Path('/proc').glob('[0-9]*'):
    words = (one / 'cmdline').read_bytes().split(b'\\0')
    if b'agent' in words and any(word.endswith(b'/tessera') for word in words):
        os.kill(int(one.name), signal.SIGKILL)
"""


def until_running(cluster: Cluster, name: str) -> None:
    """Wait until a pod runs; where it never will or does not in time, its status and events say why."""

    def running() -> bool:
        found = phase(cluster, name)
        if found == "Failed":
            raise Unavailable(f"pod {name}", found=f"Failed; {events()}", expected="Running")
        return found == "Running"

    def events() -> str:
        told = cluster.get("events", f"--field-selector=involvedObject.name={name}")["items"]
        return json.dumps([cluster.get("pod", name)["status"], *(each["message"] for each in told)])

    until(f"pod {name}", running, timeout_s=_WAIT_S, found=events)


def restarts(cluster: Cluster) -> int:
    """Return how often containers of the pods in `default` were started again."""
    pods = cluster.get("pods")["items"]
    return sum(int(one["restartCount"]) for each in pods for one in each["status"].get("containerStatuses", ()))


def why_pending(cluster: Cluster, name: str) -> str:
    events = cluster.get("events", f"--field-selector=involvedObject.name={name},reason=FailedScheduling")["items"]
    return " ".join(str(event["message"]) for event in events)


def agent(cluster: Cluster) -> dict[str, Any]:
    """Return the agent's pod, when there is one that is ready and no other."""
    cluster.kubectl("rollout", "status", AGENT, f"--namespace={NAMESPACE}", f"--timeout={_WAIT_S}s")
    selector = "--selector=app.kubernetes.io/component=agent"
    (found,) = cluster.get("pods", f"--namespace={NAMESPACE}", selector)["items"]
    assert isinstance(found, dict)
    return found


def part_of(cluster: Cluster, part: str) -> dict[str, Any]:
    """Return the pod of the server, the controller or the agent."""
    selector = f"--selector=app.kubernetes.io/component={part}"
    (found,) = cluster.get("pods", f"--namespace={NAMESPACE}", selector)["items"]
    assert isinstance(found, dict)
    return found


def who(cluster: Cluster, part: str) -> list[str]:
    """Return user, capabilities and root file system of the processes of a part, as the node sees them."""
    said = cluster.nodes[0].run(sys.executable, "-c", WHO, part_of(cluster, part)["metadata"]["uid"])
    return sorted(set(said.splitlines()))


def test_the_five_pods_of_the_example_run_or_say_why_not(image_cluster: Cluster) -> None:
    image_cluster.kubectl("apply", "-f", str(EXAMPLES))
    for name in RUNNING:
        until_running(image_cluster, name)
    until("its reason", lambda: "60 GiB" in why_pending(image_cluster, "too-large"), timeout_s=_WAIT_S)
    assert phase(image_cluster, "too-large") == "Pending"


def test_only_the_agent_is_root_and_none_can_write_to_its_image(image_cluster: Cluster) -> None:
    for part in ("server", "controller"):
        assert who(image_cluster, part) == ["65532, no capabilities, read-only"]
    (said,) = who(image_cluster, "agent")
    assert said.startswith("0, ")
    assert said.endswith(", read-only")


def test_top_finds_the_agents_by_way_of_the_api_server(image_cluster: Cluster) -> None:
    program = str(Path(sys.executable).with_name("tessera"))
    command = (program, "top", "--once", "--output=json", f"--kubeconfig={image_cluster.kubeconfig}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert report["node"] == image_cluster.nodes[0].name
    assert [each["model"] for each in report["gpus"]] == ["A100-40GB", "A100-40GB"]


SCRAPE = """
import http.client, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
context.check_hostname = False  # Prometheus says the name; here the pod's address alone is known
plain, tls = http.client.HTTPConnection, http.client.HTTPSConnection
for connection in plain(sys.argv[1], 9400), tls(sys.argv[1], 9400, context=context):
    try:
        connection.request('GET', '/metrics')
        answer = connection.getresponse()
        print(answer.status, b'tessera_' in answer.read())
    except (OSError, http.client.HTTPException):
        print('nothing')
"""


def test_metrics_over_tls_for_prometheus_and_for_top(image_cluster: Cluster, pki: Path) -> None:
    """The chart's `metrics.tls`: the real kubelet mounts the Secret, and the real API server's proxy speaks TLS."""

    def replaced() -> bool:
        parts = image_cluster.get("pods", f"--namespace={NAMESPACE}")["items"]
        return sorted(one["metadata"]["labels"]["app.kubernetes.io/component"] for one in parts) == sorted(
            installed.PARTS
        )

    files = (f"--from-file={to}={pki / of}" for to, of in (("tls.crt", "server.crt"), ("tls.key", "server.key")))
    image_cluster.kubectl("create", "secret", "generic", "tessera-metrics", f"--namespace={NAMESPACE}", *files)
    chart = installed.values(scheduler=True, admission=True) | {"metrics": {"tls": {"secret": "tessera-metrics"}}}
    installed.install(image_cluster, tuple(image_cluster.nodes), chart, report=print)
    until("the former pods' end", replaced, timeout_s=_WAIT_S)
    for part in installed.PARTS:
        address = part_of(image_cluster, part)["status"]["podIP"]
        said = image_cluster.nodes[0].run(sys.executable, "-c", SCRAPE, address, str(pki / "ca.crt"))
        assert said.splitlines() == ["nothing", "200 True"], part
    test_top_finds_the_agents_by_way_of_the_api_server(image_cluster)


def test_simulated_gpus_need_no_compiler(image_cluster: Cluster) -> None:
    containers = part_of(image_cluster, "server")["spec"]["containers"]
    (image,) = (each["image"] for each in containers if each["name"] == "server")
    arguments = ["sim-gpus", "create", "--gpus", "T4", "--state", "/tmp/gpus"]
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "args": arguments}
    image_cluster.apply({**busybox("simulates"), "spec": {"containers": [container], "restartPolicy": "Never"}})
    until("its end", lambda: phase(image_cluster, "simulates") in {"Succeeded", "Failed"}, timeout_s=_WAIT_S)
    log(image_cluster, "simulates", "1 GPU in /tmp/gpus")


def test_mps_daemons_and_their_pods_outlive_the_agent(image_cluster: Cluster) -> None:
    sharer = busybox("sharer", limits={"tessera.dev/gpu-memory": 3}, schedulerName="tessera-scheduler")
    image_cluster.apply(sharer)
    until_running(image_cluster, "sharer")
    (node,) = image_cluster.nodes
    before = mps_daemons(node)
    assert before
    # 1. Its container ends, and the same pod gets another.
    former = agent(image_cluster)
    node.run(sys.executable, "-c", KILL_AGENT)
    name = former["metadata"]["name"]
    again = ("pod", f"--namespace={NAMESPACE}", name)
    until(
        "another container",
        lambda: image_cluster.get(*again)["status"]["containerStatuses"][0]["restartCount"] == 1,
        timeout_s=_WAIT_S,
    )
    assert agent(image_cluster)["metadata"]["name"] == name
    assert mps_daemons(node) == before
    # 2. Its pod ends, as by an upgrade, and there is another.
    image_cluster.kubectl("delete", *again)
    assert agent(image_cluster)["metadata"]["name"] != name
    assert mps_daemons(node) == before
    assert restarts(image_cluster) == 0
    # 3. The new agent goes on with them: another pod gets its share, and no daemon is started for it.
    image_cluster.apply(busybox("later", limits={"tessera.dev/gpu-memory": 3}, schedulerName="tessera-scheduler"))
    until_running(image_cluster, "later")
    assert mps_daemons(node) == before


def warmup(cluster: Cluster, *images: str, **spec: Any) -> None:
    kind = {"apiVersion": "tessera.dev/v1alpha1", "kind": "ImageWarmup", "metadata": {"name": "suite"}}
    listed = {"images": list(images)} if images else {}
    cluster.apply({**kind, "spec": {**listed, "pullSecrets": ["registry"], "maxDiskPercent": 100, **spec}})


def found(cluster: Cluster) -> dict[str, Any]:
    """Return the status of that warmup; of one that has none the empty one."""
    status: dict[str, Any] = cluster.get("imagewarmup", "suite").get("status") or {}
    return status


async def pinned(cluster: Cluster) -> frozenset[str]:
    """Return the images that are pinned on the node, asked of its containerd."""
    (node,) = cluster.nodes
    runtime = CriRuntime(node.path("/run/containerd/containerd.sock"))
    try:
        return await runtime.pinned()
    finally:
        await runtime.close()


def test_images_are_pulled_with_credentials_pinned_and_unpinned(
    image_cluster: Cluster, real_registry: RealRegistry
) -> None:
    (node,) = image_cluster.nodes
    real_registry.push(*filled(), "suite/one")
    secret = (f"--docker-username={USER}", f"--docker-password={PASSWORD}", "--docker-server=127.0.0.1:5001")
    image_cluster.kubectl("create", "secret", "docker-registry", "registry", f"--namespace={NAMESPACE}", *secret)
    users = f"{USER}:{HASHED}\n"
    with serve_on(node, real_registry, 5000) as one, serve_on(node, real_registry, 5001, users=users) as locked:
        images = (f"{one}/suite/one:1", f"{locked}/suite/one:several")
        warmup(image_cluster, *images)
        until(
            "both images",
            lambda: found(image_cluster).get("pinned") == 1,
            timeout_s=_WAIT_S,
            found=partial(why, image_cluster),
        )
        memory, _ = filled()
        want = [(image, memory.contents["suite/one", image.rpartition(":")[2]].digest) for image in images]
        status = found(image_cluster)
        assert [(each["image"], each["digest"]) for each in status["images"]] == want
        assert {each["type"]: each["status"] for each in status["conditions"]} == {"Accepted": "True", "Ready": "True"}
        assert asyncio.run(pinned(image_cluster)) == set(images)
        warmup(image_cluster, images[0])
        until("one image", lambda: asyncio.run(pinned(image_cluster)) == {images[0]}, timeout_s=_WAIT_S)
        # The other one, now as that of an environment, which says where it is.
        environment = {"apiVersion": "tessera.dev/v1alpha1", "kind": "Environment", "metadata": {"name": "suite"}}
        image_cluster.apply({**environment, "spec": {"image": images[1]}})
        warmup(image_cluster, environments={})
        until("its image", lambda: asyncio.run(pinned(image_cluster)) == {images[1]}, timeout_s=_WAIT_S)
        everywhere = {"nodes": 1, "ready": 1, "image": images[1]}
        until("that it is said", lambda: _status_of_environment(image_cluster) == everywhere, timeout_s=_WAIT_S)
        image_cluster.kubectl("delete", "environment", "suite")
        image_cluster.kubectl("delete", "imagewarmup", "suite")
        until("no image", lambda: not asyncio.run(pinned(image_cluster)), timeout_s=_WAIT_S)


def _status_of_environment(cluster: Cluster) -> Any:
    return cluster.get("environment", "suite").get("status")


def why(cluster: Cluster) -> str:
    return json.dumps([found(cluster), *(each.get("status") for each in cluster.get("nodeimages")["items"])])


def test_the_installed_agent_keeps_models(image_cluster: Cluster) -> None:
    (node,) = image_cluster.nodes
    small_disk(node, "/var/lib/tessera/disk")
    node.path("/var/lib/tessera/shared/llama").mkdir(parents=True)
    node.path("/var/lib/tessera/shared/llama/config").write_text("installed\n")
    # The first process here is not the node's, as `/proc/1/root` expects; the state folder is in the pod too.
    options = ("--host-root=/", "--model-dir=/var/lib/tessera/disk/models", "--model-source=/var/lib/tessera/shared")
    steps = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": each} for each in options]
    image_cluster.kubectl("patch", AGENT, f"--namespace={NAMESPACE}", "--type=json", f"--patch={json.dumps(steps)}")
    kind = {"apiVersion": "tessera.dev/v1alpha1", "kind": "ModelCache", "metadata": {"name": "llama"}}
    image_cluster.apply({**kind, "spec": {"source": "file:///var/lib/tessera/shared/llama"}})
    reads = 'cat "$TESSERA_MODEL_LLAMA_PATH/config"; exec sleep 3600'
    image_cluster.apply(busybox("reads-model", command=reads, limits={"models.tessera.dev/llama": 1}))
    until_running(image_cluster, "reads-model")
    assert log(image_cluster, "reads-model", "installed") == ["installed"]


@pytest.fixture
def disk(image_cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """Give a blank block device of the node, whose /dev is as it was when the node came up."""
    with attached(tmp_path / "disk.img") as device:
        os.mknod(image_cluster.nodes[0].path(device), 0o600 | stat.S_IFBLK, Path(device).stat().st_rdev)
        yield device


def test_local_disks_become_volumes_of_pods(image_cluster: Cluster, disk: str) -> None:
    """The disk agent's pod mounts for the host, so that the kubelet gives a folder of the disk to a pod."""
    (node,) = image_cluster.nodes
    desired = {"enabled": True, "volumes": 2, "args": [f"--select={disk}", "--interval-s=1"]}
    made = objects(
        "rbac/disks.yaml",
        "admission/disks.yaml",
        "disks.yaml",
        values={**installed.values(scheduler=True, admission=True), "disks": desired},
    )
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
            "storageClassName": "tessera-local",
        },
    }
    try:
        image_cluster.apply(*made, claim)
        labels = partial(image_cluster.get, "node", node.name)
        until(
            "ready disks", lambda: labels()["metadata"]["labels"].get("tessera.dev/disks") == "ready", timeout_s=_WAIT_S
        )
        one = busybox("writer", command="echo hello > /data/file; sleep 3600")
        one["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        one["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        image_cluster.apply(one)
        until_running(image_cluster, "writer")
        volumes = node.path("/mnt/disks/tessera/volumes")
        until(
            "its file",
            lambda: [found.read_text() for found in volumes.glob("*/file")] == ["hello\n"],
            timeout_s=_WAIT_S,
        )
    finally:
        image_cluster.kubectl("delete", "pod", "writer", "--ignore-not-found", "--wait")
        image_cluster.kubectl("delete", "daemonset", "tessera-disks", f"--namespace={NAMESPACE}", "--ignore-not-found")


def test_the_image_is_as_large_as_its_page_says() -> None:
    """A library that only developers need, as the site's builder, would show here."""
    rows = re.findall(r"^\| (?:base|tessera) \| .* \| (\d+) MiB \| [\d.]+ MiB \|$", PAGE.read_text(), re.MULTILINE)
    with tarfile.open(tessera_image(print)) as archive:
        layers = [_unpacked_mib(archive, name) for name in ("0.tar", "1.tar")]
    assert layers == pytest.approx(list(map(float, rows)), rel=0.05, abs=1)


def _unpacked_mib(archive: tarfile.TarFile, name: str) -> float:
    content = archive.extractfile(name)
    assert content is not None
    with tarfile.open(fileobj=content) as layer:
        return sum(each.size for each in layer) / 2**20


def test_a_node_pulls_the_image_from_a_registry(image_cluster: Cluster, real_registry: RealRegistry) -> None:
    """Its layers are compressed there, so that what the node has of the image already does not stand for them.

    It is the last with this cluster: a kubelet that has pulled an image itself asks the registry for it again under its
    other names, and no longer starts the agent's container with it (KubeletEnsureSecretPulledImages).
    """
    real_registry.push_archive(tessera_image(print), "suite/tessera", "pulled")
    with serve_on(image_cluster.nodes[0], real_registry, 5002) as host:
        image = f"{host}/suite/tessera:pulled"
        container = {"name": "main", "image": image, "imagePullPolicy": "Always", "args": ["--version"]}
        image_cluster.apply({**busybox("pulls"), "spec": {"containers": [container], "restartPolicy": "Never"}})
        until("its end", lambda: phase(image_cluster, "pulls") in {"Succeeded", "Failed"}, timeout_s=_WAIT_S)
        log(image_cluster, "pulls", f"tessera, version {__version__}")
