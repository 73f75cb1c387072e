"""ModelCaches on two real nodes: pods wait for a model, get one revision of it, keep it, and nobody gets more."""

import json
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kube.conftest import fresh
from kube.modelstore import BUCKET, put, serve_bucket, small_disk
from kube.pods import busybox, remove
from tessera.clients.disks import HostErofsMounts
from tessera.errors import Unavailable
from testbed.cluster import Cluster, Desired
from testbed.deploy import NAMESPACE, objects
from testbed.node import Node
from testbed.processes import until

GPUS = ("T4",)
LLAMA = "models.tessera.dev/llama"
DISK = "/mnt/models"
FOLDER = f"{DISK}/cache"
SHARED = "/run/shared"
PEERS = "/run/peers"
ASK = "import urllib.request as u; print(u.urlopen('http://{}:9400/metrics').read().decode())"
READS = "while :; do cat /models/llama/config; touch /models/llama/x 2>&1; sleep 1; done"
_WAIT_S = 90


class Models:
    """A cluster whose nodes keep models, and a bucket on the first node."""

    def __init__(self, cluster: Cluster, pki: Path) -> None:
        self.cluster = cluster
        self._pki = pki
        self.bucket = cluster.folder / "bucket"

    def start(self) -> None:
        self.put("llama", config="one", weights="w" * 1000)
        serve_bucket(self.cluster.nodes[0], self.bucket)
        self.cluster.apply(*objects("rbac/agent.yaml", values={"agent": {"modelSecrets": ["right", "wrong"]}}))
        for node in self.cluster.nodes:
            small_disk(node, DISK)
            node.path(SHARED).mkdir()
            (node.path(SHARED) / "link").symlink_to("/etc")
            node.path(PEERS).mkdir()
            for name, file in (("tls.crt", "agent.crt"), ("tls.key", "agent.key"), ("ca.crt", "ca.crt")):
                (node.path(PEERS) / name).write_bytes((self._pki / file).read_bytes())
            self.start_agent(node)
        for name, secret in (("right", "secret"), ("wrong", "guess"), ("unnamed", "secret")):
            words = ("--from-literal=AWS_ACCESS_KEY_ID=key", f"--from-literal=AWS_SECRET_ACCESS_KEY={secret}")
            self.cluster.kubectl("create", "secret", "generic", name, f"--namespace={NAMESPACE}", *words)

    def start_agent(self, node: Node) -> None:
        options = (f"--model-dir={FOLDER}", f"--model-source={SHARED}", "--log-format=json", "--metrics-port=9400")
        peers = (f"--peer-address={node.address}", f"--peer-tls={PEERS}")
        node.start_agent(self.cluster.agent_kubeconfig(node.name), *options, *peers)

    def put(self, name: str, **files: str) -> None:
        """Make what the bucket has of a model."""
        put(self.bucket, name, **files)

    def cache(self, name: str = "llama", **spec: Any) -> None:
        kind = {"apiVersion": "tessera.dev/v1alpha1", "kind": "ModelCache", "metadata": {"name": name}}
        fields = {"source": f"s3://models/{name}", "endpoint": BUCKET, "secret": "right", **spec}
        self.cluster.apply({**kind, "spec": fields})

    def status(self, name: str = "llama") -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get("modelcache", name).get("status") or {}
        return found

    def until_status(self, name: str = "llama", problem: str = "", **want: object) -> dict[str, Any]:
        """Return the status when it has these fields, and this word in a problem of all nodes."""

        def ready() -> bool:
            found = self.status(name)
            problems = [each["reason"] for each in found.get("problems", ())]
            said = not problem or (len(problems) == len(self.cluster.nodes) and all(problem in one for one in problems))
            return said and all(found.get(key) == value for key, value in want.items())

        until(f"model {name}", ready, timeout_s=_WAIT_S, found=self.why)
        return self.status(name)

    def why(self) -> str:
        items = [*self.cluster.get("modelcaches")["items"], *self.cluster.get("nodemodels")["items"]]
        return json.dumps([each.get("status") for each in items])

    def start_pod(self, name: str, node: str = "", command: str = READS) -> None:
        more = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
        self.cluster.apply(busybox(name, command=command, limits={LLAMA: 1}, **more))

    def reads(self, name: str) -> str:
        """Return what a pod read last, when it runs."""
        lines = self.cluster.kubectl("logs", name, "--tail=2").splitlines()
        return " ".join(sorted(lines))

    def until_reads(self, name: str, content: str) -> None:
        def ready() -> bool:
            phase = self.cluster.get("pod", name)["status"]["phase"]
            return phase == "Running" and content in self.reads(name) and "Read-only file system" in self.reads(name)

        until(f"pod {name} with {content}", ready, timeout_s=_WAIT_S, found=self.why)

    def bytes_read(self, node: Node, source: str) -> int:
        """Return the bytes of models that a node has read from peers, or from stores."""
        name = f'tessera_node_models_read_bytes_total{{source="{source}"}} '
        lines = node.run(sys.executable, "-c", ASK.format(node.address)).splitlines()
        return next((int(float(line.removeprefix(name))) for line in lines if line.startswith(name)), 0)

    def on_disk(self, node: int) -> set[str]:
        return {each.name for each in self.cluster.nodes[node].path(FOLDER).glob("llama/versions/*")}


@pytest.fixture(scope="module")
def models(program_folder: Path, pki: Path) -> Iterator[Models]:
    testbed = fresh("models", program_folder)
    try:
        testbed.up(Desired(nodes=2, gpus=GPUS, scheduler=True))
        one = Models(testbed, pki)
        one.start()
        yield one
    finally:
        testbed.down()


def test_a_tenant_makes_no_model_cache(models: Models) -> None:
    tenant = "--as=system:serviceaccount:default:default"
    for kind in ("modelcaches", "nodemodels"):
        for verb in ("create", "patch", "delete"):
            with pytest.raises(Unavailable, match="can-i"):
                models.cluster.kubectl("auth", "can-i", verb, f"{kind}.tessera.dev", tenant)


def test_wrong_credentials_and_those_that_nobody_may_read_stand_in_the_status(models: Models) -> None:
    models.cache(secret="unnamed")
    models.until_status(problem="agent.modelSecrets", nodes=2)
    models.cache(secret="wrong")
    models.until_status(problem="403", nodes=2)


def test_pods_wait_for_the_model_and_get_it_read_only(models: Models) -> None:
    for number in (1, 2):
        models.start_pod(f"old{number}", f"node{number}")

    def why_pending() -> str:
        events = models.cluster.get("events", "--field-selector=involvedObject.name=old1,reason=FailedScheduling")
        return " ".join(str(each["message"]) for each in events["items"])

    until("why it waits", lambda: f"Insufficient {LLAMA}" in why_pending(), timeout_s=_WAIT_S, found=why_pending)
    models.cache(intervalSeconds=2, keep=1)
    for number in (1, 2):
        models.until_reads(f"old{number}", "one")
    status = models.until_status(ready=2, containers=2, bytes=1003)
    assert {each["type"]: each["status"] for each in status["conditions"]} == {"Accepted": "True", "Ready": "True"}


def test_running_pods_keep_their_revision_and_new_ones_get_the_new(models: Models) -> None:
    former = models.status()["revision"]
    models.put("llama", config="two")
    until("the new revision", lambda: models.status().get("revision") != former, timeout_s=_WAIT_S, found=models.why)
    models.until_status(onRevision=2)
    until("it offered", lambda: len(models.on_disk(0)) == 2, timeout_s=_WAIT_S, found=models.why)
    models.start_pod("new", "node1")
    models.until_reads("new", "two")
    models.until_reads("old1", "one")
    # An agent that starts anew removes nothing that a pod has.
    for node in models.cluster.nodes:
        node.stop_process("agent")
        models.start_agent(node)
    current = models.status()["revision"]
    models.put("llama", config="three")
    until("another", lambda: models.status().get("revision") != current, timeout_s=_WAIT_S, found=models.why)
    models.until_reads("old2", "one")
    models.until_reads("new", "two")
    assert all(former in models.on_disk(node) for node in (0, 1))
    # The nodes of a testbed see each other's processes, and these hold a revision as well.
    remove(models.cluster, "old1", "old2")

    def gone() -> bool:
        return not any(former in models.on_disk(node) for node in (0, 1))

    until("the end of the former", gone, timeout_s=_WAIT_S, found=models.why)


def test_nodes_give_each_other_what_they_have_read_and_no_more_is_read_of_the_bucket_than_one_alone_would(
    models: Models,
) -> None:
    nodes = models.cluster.nodes

    def answer() -> bool:
        try:
            return all(models.bytes_read(node, "peers") >= 0 for node in nodes)
        except Unavailable:
            return False

    until("the agents' metrics", answer, timeout_s=_WAIT_S)
    before = {source: sum(models.bytes_read(node, source) for node in nodes) for source in ("peers", "stores")}
    models.put("together", **{f"part{number}": secrets.token_hex(100_000) for number in range(8)})
    models.cache("together", nodeSelector={"matchLabels": {"kubernetes.io/hostname": nodes[0].name}})
    models.until_status("together", nodes=1, ready=1)
    models.cache("together")
    models.until_status("together", ready=2)
    try:
        read = {each: sum(models.bytes_read(node, each) for node in nodes) - before[each] for each in before}
        assert read == {"peers": 1_600_000, "stores": 1_600_000}
        for node in nodes:
            status = models.cluster.get("nodemodels", node.name)["status"]
            assert status["peer"] == f"{node.address}:9443"
    finally:
        models.cluster.kubectl("delete", "modelcache", "together")


def test_a_packed_model_is_one_image_that_pods_read_like_files(models: Models) -> None:
    if problem := HostErofsMounts().why_not():
        pytest.skip(problem)
    for each in models.cluster.nodes:  # the kernel makes them in the machine's own /dev alone
        each.run("sh", "-c", "for n in $(seq 0 63); do [ -e /dev/loop$n ] || mknod /dev/loop$n b 7 $n; done")
    models.put("packed", config="one", weights="w" * 1000)
    models.cache("packed", intervalSeconds=2, keep=1, pack="Always")
    revision = models.until_status("packed", ready=2, bytes=1003)["revision"]
    node = models.cluster.nodes[0]
    kind = ("stat", "--file-system", "--format=%T", f"{FOLDER}/packed/versions/{revision}")
    assert node.run(*kind).strip() == "erofs"
    reads = READS.replace("llama", "packed")
    limits = {f"{LLAMA.removesuffix('llama')}packed": 1}
    models.cluster.apply(busybox("packed", command=reads, limits=limits))
    models.until_reads("packed", "one")
    models.put("packed", config="two")
    until("the new one", lambda: models.status("packed").get("revision") != revision, timeout_s=_WAIT_S)
    models.until_reads("packed", "one")
    models.cluster.kubectl("delete", "modelcache", "packed")
    remove(models.cluster, "packed")
    folders = [each.path(f"{FOLDER}/packed") for each in models.cluster.nodes]
    until("its end", lambda: not any(each.exists() for each in folders), timeout_s=_WAIT_S, found=models.why)


HOSTILE = {
    "a folder of the node": ("file:///etc", "models do not come from this folder of the node"),
    "a link out of the shared folder": (f"file://{SHARED}/link", "leads out of"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_source_that_nobody_may_read_is_said(models: Models, case: str) -> None:
    source, want = HOSTILE[case]
    models.cache("hostile", source=source, endpoint="", secret="")
    try:
        models.until_status("hostile", problem=want, nodes=2, ready=None)
        assert not [path for node in models.cluster.nodes for path in node.path(FOLDER).glob("hostile/versions/*")]
    finally:
        models.cluster.kubectl("delete", "modelcache", "hostile")


def test_a_node_that_is_lost_leaves_the_count_and_comes_back_with_its_models(models: Models) -> None:
    second = models.cluster.nodes[1]
    kept = models.on_disk(1)
    second.stop_kubelet()
    second.stop_process("agent")
    models.cluster.kubectl("delete", "node", second.name)
    models.until_status(nodes=1, ready=1)
    models.until_reads("new", "two")
    second.start_kubelet()
    node = ("get", "node", second.name, "--ignore-not-found", "-o=name")
    until("the node", lambda: bool(models.cluster.kubectl(*node)), timeout_s=_WAIT_S)
    models.cluster.agent_kubeconfig(second.name).unlink()  # its token was that of the Node that is gone
    models.start_agent(second)
    models.until_status(nodes=2, ready=2)
    assert models.status()["revision"] in kept, "nothing was fetched again"


def test_a_model_that_is_not_desired_any_more_goes_with_its_last_pod(models: Models) -> None:
    models.cluster.kubectl("delete", "modelcache", "llama")
    models.until_reads("new", "two")
    remove(models.cluster)
    folders = [node.path(f"{FOLDER}/llama") for node in models.cluster.nodes]
    until("its end", lambda: not any(each.exists() for each in folders), timeout_s=_WAIT_S, found=models.why)
    shutil.rmtree(models.bucket)
