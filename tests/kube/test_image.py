"""Tessera's image under the real kubelet, by the objects of the chart: what works from the checkout works from it."""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from conformance.registrysuite import filled
from conformance.runtimesuite import PASSWORD, USER
from kube.pods import phase, pod
from kube.registry import HASHED, RealRegistry, serve_on
from tessera.clients.runtime import CriRuntime
from testbed.cluster import Cluster
from testbed.deploy import NAMESPACE
from testbed.processes import until

GPUS = ("2xA100-40GB",)
EXAMPLES = Path(__file__).parents[2] / "examples" / "8-on-a-cluster" / "pods.yaml"
RUNNING = ("six", "hard", "exact", "gpushare")
AGENT = "daemonset/tessera-agent"
_WAIT_S = 120
WHO = """
import os, pathlib, sys
for one in pathlib.Path('/proc').glob('[0-9]*'):
    words = (one / 'cmdline').read_bytes().split(b'\\0')
    groups = (one / 'cgroup').read_text().replace('_', '-')
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
    until(f"pod {name}", lambda: phase(cluster, name) == "Running", timeout_s=_WAIT_S)


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


def daemons(cluster: Cluster) -> dict[str, int]:
    """Return the processes of the MPS daemons that run on the node."""
    (node,) = cluster.nodes
    records = [json.loads(path.read_text()) for path in node.path("/run/tessera/mps").glob("*/daemon.json")]
    return {one["target"]["key"]: one["pid"] for one in records if node.path(f"/proc/{one['pid']}").exists()}


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


def test_simulated_gpus_need_no_compiler(image_cluster: Cluster) -> None:
    containers = part_of(image_cluster, "server")["spec"]["containers"]
    (image,) = (each["image"] for each in containers if each["name"] == "server")
    arguments = ["sim-gpus", "create", "--gpus", "T4", "--state", "/tmp/gpus"]
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "args": arguments}
    image_cluster.apply({**pod("simulates"), "spec": {"containers": [container], "restartPolicy": "Never"}})
    until("its end", lambda: phase(image_cluster, "simulates") in {"Succeeded", "Failed"}, timeout_s=_WAIT_S)
    assert "1 GPU in /tmp/gpus" in image_cluster.kubectl("logs", "simulates").splitlines()


def test_mps_daemons_and_their_pods_outlive_the_agent(image_cluster: Cluster) -> None:
    sharer = pod("sharer", limits={"tessera.dev/gpu-memory": 3}, schedulerName="tessera-scheduler")
    image_cluster.apply(sharer)
    until_running(image_cluster, "sharer")
    before = daemons(image_cluster)
    assert before
    # 1. Its container ends, and the same pod gets another.
    former = agent(image_cluster)
    image_cluster.nodes[0].run(sys.executable, "-c", KILL_AGENT)
    name = former["metadata"]["name"]
    again = ("pod", f"--namespace={NAMESPACE}", name)
    until(
        "another container",
        lambda: image_cluster.get(*again)["status"]["containerStatuses"][0]["restartCount"] == 1,
        timeout_s=_WAIT_S,
    )
    assert agent(image_cluster)["metadata"]["name"] == name
    assert daemons(image_cluster) == before
    # 2. Its pod ends, as by an upgrade, and there is another.
    image_cluster.kubectl("delete", *again)
    assert agent(image_cluster)["metadata"]["name"] != name
    assert daemons(image_cluster) == before
    assert restarts(image_cluster) == 0
    # 3. The new agent goes on with them: another pod gets its share, and no daemon is started for it.
    image_cluster.apply(pod("later", limits={"tessera.dev/gpu-memory": 3}, schedulerName="tessera-scheduler"))
    until_running(image_cluster, "later")
    assert daemons(image_cluster) == before


def warmup(cluster: Cluster, *images: str) -> None:
    kind = {"apiVersion": "tessera.dev/v1alpha1", "kind": "ImageWarmup", "metadata": {"name": "suite"}}
    cluster.apply({**kind, "spec": {"images": list(images), "pullSecrets": ["registry"], "maxDiskPercent": 100}})


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
        image_cluster.kubectl("delete", "imagewarmup", "suite")
        until("no image", lambda: not asyncio.run(pinned(image_cluster)), timeout_s=_WAIT_S)


def why(cluster: Cluster) -> str:
    return json.dumps([found(cluster), *(each.get("status") for each in cluster.get("nodeimages")["items"])])
