"""What the admission policies do on a real API server: which pods are routed, which are refused, with what advice."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.admissionpods import ROUTED, asking
from tessera.errors import Unavailable
from testbed import admission
from testbed.addresses import CONTROL_PLANE
from testbed.cluster import Cluster
from testbed.deploy import objects
from testbed.namespaces import Namespaces, environment
from testbed.processes import until

MEMORY = {"tessera.dev/gpu-memory": "6"}
OURS, DEFAULT = "tessera-scheduler", "default-scheduler"
PORT = 8443
ASSIGNMENT = "tessera.dev/assignment"
GUARDED = (
    ASSIGNMENT,
    "tessera.dev/assignment-signature",
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_POD",
    "ALIYUN_COM_GPU_MEM_ASSIGNED",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "scheduler.framework.gpushare.allocation",
)
ACCOUNT = "system:serviceaccount:tessera-system:tessera-"
EVERYBODY = ("--as-group=system:masters", "--as-group=system:authenticated")
"""Rights to everything: what refuses is the policy, not RBAC."""
TENANT = ("--as=jane", *EVERYBODY)


def scheduler_of(cluster: Cluster, pod: dict[str, Any], namespace: str = "default") -> str:
    """Return the scheduler that a pod would go to."""
    said = cluster.kubectl(
        *("create", "--dry-run=server", "-n", namespace, "-o", "json", "-f", "-"), input_text=json.dumps(pod)
    )
    return str(json.loads(said)["spec"]["schedulerName"])


@pytest.fixture(scope="module", params=["policy", "webhook"])
def routing(control_plane: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a cluster where the API server routes by itself, then one where it calls the server."""
    if request.param == "policy":
        admission.install(control_plane, admission.FILES[:1])
        yield control_plane
        admission.remove(control_plane, admission.FILES[:1])
    else:
        yield from webhook(control_plane)


def webhook(cluster: Cluster) -> Iterator[Cluster]:
    """Start a server that makes its certificate and answers at the control plane's address; the API server asks it."""
    made = objects("admission/scheduler-name-webhook.yaml", values={"admission": {"routing": "webhook"}})
    service = made[1]
    assert service["kind"] == "Service"
    # No proxy leads a Service's address to its pods here.
    service["spec"] = {"type": "ExternalName", "externalName": str(CONTROL_PLANE)}
    cluster.apply(*made)
    address = ("--port", "0", "--admission-host", CONTROL_PLANE, "--admission-port", str(PORT))
    own = ("--admission-self-signed", str(cluster.folder / "certificate"))
    holder = cluster.processes.get("namespaces")
    assert holder is not None
    variables = {**environment(), "KUBECONFIG": str(cluster.account_kubeconfig("server"))}
    command = (str(Path(sys.executable).with_name("tessera")), "server", *address, *own)
    cluster.processes.start("admission", command, inside=Namespaces(holder).enter(), environment=variables)
    try:
        until("the webhook is asked", lambda: scheduler_of(cluster, asking(MEMORY)) == OURS, timeout_s=60)
        yield cluster
        cluster.processes.stop("admission")
        assert scheduler_of(cluster, asking(MEMORY)) == DEFAULT, "without a server pods come as they are"
    finally:
        cluster.processes.stop("admission")
        for each in made:
            namespace = each["metadata"].get("namespace", "")
            cluster.kubectl("delete", each["kind"], each["metadata"]["name"], *(("-n", namespace) if namespace else ()))
    until("the webhook is gone", lambda: scheduler_of(cluster, asking(MEMORY)) == DEFAULT, timeout_s=60)


@pytest.mark.parametrize("case", ROUTED)
def test_the_api_server_routes_what_the_function_routes(routing: Cluster, case: str) -> None:
    pod, namespace, want = ROUTED[case]
    assert scheduler_of(routing, pod, namespace) == (OURS if want else pod["spec"].get("schedulerName", DEFAULT))


# Pods that name their node


@pytest.fixture(scope="module")
def guarded(control_plane: Cluster) -> Iterator[Cluster]:
    admission.install(control_plane, admission.FILES[1:3])
    yield control_plane
    admission.remove(control_plane, admission.FILES[1:3])


def create(cluster: Cluster, pod: dict[str, Any], *who: str, dry: bool = True) -> None:
    words = ("--dry-run=server",) if dry else ()
    cluster.kubectl("create", *words, "-n", "default", *who, "-f", "-", input_text=json.dumps(pod))


def _limits(limits: dict[str, str]) -> dict[str, Any]:
    return {"image": "none", "resources": {"limits": limits}}


ON_A_NODE = {
    "a need": asking(MEMORY, nodeName="n"),
    "gpushare's memory in an init container": asking(
        nodeName="n", initContainers=[{**asking({"aliyun.com/gpu-mem": "2"})["spec"]["containers"][0], "name": "i"}]
    ),
    "another scheduler too": asking(MEMORY, nodeName="n", schedulerName="volcano"),
}


@pytest.mark.parametrize("case", ON_A_NODE)
def test_a_pod_that_names_its_node_and_asks_an_amount_is_refused_with_what_to_do(guarded: Cluster, case: str) -> None:
    with pytest.raises(Unavailable) as refused:
        create(guarded, ON_A_NODE[case], *TENANT)
    assert "spec.nodeName is set, so no scheduler can give this pod a device for " in str(refused.value)
    assert "nodeSelector: {kubernetes.io/hostname: n}" in str(refused.value)


TAKEN = {
    "a pod on a node that asks nothing": asking(nodeName="n"),
    "a pod on a node that asks a device by name": asking({"nvidia.com/gpu": "1"}, nodeName="n"),
    "a pod on a node that asks nothing of it": asking({"tessera.dev/gpu-memory": "0"}, nodeName="n"),
    "a need without a node": asking(MEMORY),
}


@pytest.mark.parametrize("case", TAKEN)
def test_other_pods_come_as_they_are(guarded: Cluster, case: str) -> None:
    create(guarded, TAKEN[case], *TENANT)


# Requests that nobody can serve as they were meant


@pytest.fixture(scope="module")
def sensible(control_plane: Cluster) -> Iterator[Cluster]:
    admission.install(control_plane, admission.FILES[4:])
    yield control_plane
    admission.remove(control_plane, admission.FILES[4:])


NONSENSE: dict[str, tuple[dict[str, Any], str | set[str]]] = {
    "2^64, of which a kubelet keeps nothing": (
        asking({"nvidia.com/gpu": "18446744073709551616"}),
        "the limit of nvidia.com/gpu is above 2147483647, and of such numbers and their sums kube-scheduler and",
    ),
    "2^63 slices in an init container": (
        asking(initContainers=[{"name": "i", **_limits({"nvidia.com/mig-1g.5gb": "9223372036854775808"})}]),
        "the limit of nvidia.com/mig-1g.5gb is above",
    ),
    "two that sum to -2 in 64 bits, which fits everywhere": (
        asking(
            {"nvidia.com/mig-1g.5gb": "9223372036854775807"},
            initContainers=[
                {"name": "i", "restartPolicy": "Always", **_limits({"nvidia.com/mig-1g.5gb": "9223372036854775807"})}
            ],
        ),
        "the limit of nvidia.com/mig-1g.5gb is above",
    ),
    "an amount with a suffix": (
        asking({"tessera.dev/gpu-memory": "6Gi"}),
        "request as many as a node has, without a suffix (6, not 6Gi)",
    ),
    "an amount without end": (
        asking({"tessera.dev/gpu-memory": "1e30"}),
        "the limit of tessera.dev/gpu-memory is above",
    ),
    "an amount beside a device": (
        asking({"tessera.dev/gpu-memory": "6", "nvidia.com/gpu": "1"}),
        "at once: choose one of nvidia.com/..., aliyun.com/gpu-mem, tessera.dev/gpu-memory, or use several containers",
    ),
    "a share beside a slice": (
        asking({"aliyun.com/gpu-mem": "6", "nvidia.com/mig-1g.5gb": "1"}),
        {"a container requests GPUs by ", "aliyun.com/gpu-mem", " and ", "nvidia.com/mig-1g.5gb", " at once"},
    ),
    "a share beside an amount": (
        asking({"aliyun.com/gpu-mem": "6", "tessera.dev/gpu-memory": "6"}),
        {"a container requests GPUs by ", "aliyun.com/gpu-mem", " and ", "tessera.dev/gpu-memory", " at once"},
    ),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_a_request_that_nobody_can_serve_as_it_was_meant_is_refused_with_what_to_write(
    sensible: Cluster, case: str
) -> None:
    pod, want = NONSENSE[case]
    with pytest.raises(Unavailable) as refused:
        create(sensible, pod, *TENANT)
    # The order of names is that of Go's maps: another one each time.
    for part in {want} if isinstance(want, str) else want:
        assert part in str(refused.value)


SENSE = {
    "the largest number": asking({"nvidia.com/gpu": "2147483647"}),
    "as many of what is none of Tessera's": asking({"example.com/nic": "9223372036854775807"}),
    "nothing": asking(),
    "cpu alone": asking({"cpu": "1"}),
    "an amount, with compute and a count": asking(
        {"tessera.dev/gpu-memory": "6", "tessera.dev/gpu-compute": "20", "tessera.dev/gpu-count": "2"}
    ),
    "none of one form beside another": asking({"tessera.dev/gpu-memory": "6", "nvidia.com/gpu": "0"}),
    "two names": asking({"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "1"}),
    "names of others": asking({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "example.com/nic": "1"}),
    "two forms in two containers": asking(
        {"nvidia.com/gpu": "1"}, initContainers=[{"name": "i", **_limits({"tessera.dev/gpu-memory": "6"})}]
    ),
}


@pytest.mark.parametrize("case", SENSE)
def test_other_requests_come_as_they_are(sensible: Cluster, case: str) -> None:
    create(sensible, SENSE[case], *TENANT)


# Assignments


def annotated(*keys: str) -> dict[str, Any]:
    pod = asking(MEMORY)
    pod["metadata"]["annotations"] = dict.fromkeys(keys, "1")
    return pod


@pytest.mark.parametrize("key", GUARDED)
def test_nobody_creates_a_pod_with_an_assignment(guarded: Cluster, key: str) -> None:
    with pytest.raises(Unavailable) as refused:
        create(guarded, annotated(key), *TENANT)
    assert f"only Tessera assigns GPUs, and jane may not set, change or remove {key}. " in str(refused.value)
    with pytest.raises(Unavailable, match="only Tessera assigns GPUs"):
        create(guarded, annotated(key))  # nor an administrator, whose controllers create what tenants wrote


def test_every_annotation_that_a_binding_writes_is_guarded() -> None:
    policy = objects("admission/assignments.yaml")[0]
    (text,) = (each["expression"] for each in policy["spec"]["variables"] if each["name"] == "guarded")
    assert tuple(json.loads(text.replace("'", '"'))) == GUARDED


def test_other_annotations_are_free(guarded: Cluster) -> None:
    create(guarded, annotated("tessera.dev/isolation-note", "ALIYUN_COM_GPU_MEM_CONTAINER"), *TENANT)


def test_kubelets_alone_say_that_a_pod_is_a_static_one(guarded: Cluster) -> None:
    pod = asking(nodeName="n")
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "1"}
    with pytest.raises(Unavailable, match="only kubelets mirror static pods, and jane may not set, change or remove"):
        create(guarded, pod, *TENANT)
    create(guarded, pod, *TENANT, "--as-group=system:nodes")


@pytest.fixture
def bound(guarded: Cluster) -> Iterator[Cluster]:
    """Give a cluster with a pod that the server bound with its assignment."""
    create(guarded, asking(MEMORY), dry=False)
    try:
        bind(guarded, f"--as={ACCOUNT}server")
        yield guarded
    finally:
        guarded.kubectl("delete", "pod", "a", "--force", "--grace-period=0")


def bind(cluster: Cluster, *who: str) -> None:
    """Bind pod `a` as an extender does, with an assignment."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "namespace": "default", "annotations": {ASSIGNMENT: "assigned"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "no-such-node"},
    }
    path = "/api/v1/namespaces/default/pods/a/binding"
    cluster.kubectl("create", "--raw", path, *who, "-f", "-", input_text=json.dumps(binding))


def test_the_server_binds_and_the_agent_corrects(bound: Cluster) -> None:
    assert bound.get("pod", "a")["metadata"]["annotations"] == {ASSIGNMENT: "assigned"}
    patch = json.dumps({"metadata": {"annotations": {ASSIGNMENT: "corrected"}}})
    bound.kubectl("patch", "pod", "a", "-p", patch, f"--as={ACCOUNT}agent")
    assert bound.get("pod", "a")["metadata"]["annotations"] == {ASSIGNMENT: "corrected"}


def test_nobody_else_binds_with_an_assignment(guarded: Cluster) -> None:
    create(guarded, asking(MEMORY), dry=False)
    try:
        with pytest.raises(Unavailable, match=r"jane may not set, change or remove tessera\.dev/assignment"):
            bind(guarded, *TENANT)
    finally:
        guarded.kubectl("delete", "pod", "a", "--force", "--grace-period=0")


CHANGES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "changed": ({"annotations": {ASSIGNMENT: "all of it"}}, ()),
    "removed": ({"annotations": {ASSIGNMENT: None}}, ()),
    "set beside it": ({"annotations": {"ALIYUN_COM_GPU_MEM_IDX": "1"}}, ()),
    "changed with the status": ({"annotations": {ASSIGNMENT: "all of it"}}, ("--subresource=status",)),
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("who", ["jane", f"{ACCOUNT}controller", "system:serviceaccount:default:tessera-agent"])
def test_nobody_else_changes_an_assignment(bound: Cluster, case: str, who: str) -> None:
    metadata, words = CHANGES[case]
    patch = json.dumps({"metadata": metadata})
    with pytest.raises(Unavailable, match=f"{who} may not set, change or remove "):
        bound.kubectl("patch", "pod", "a", "--type=merge", "-p", patch, *words, f"--as={who}", *EVERYBODY)
    assert bound.get("pod", "a")["metadata"]["annotations"] == {ASSIGNMENT: "assigned"}


def test_a_pod_with_an_assignment_is_otherwise_its_owners(bound: Cluster) -> None:
    bound.kubectl("label", "pod", "a", "team=a", *TENANT)
    bound.kubectl("annotate", "pod", "a", "note=mine", *TENANT)
    assert bound.get("pod", "a")["metadata"]["annotations"] == {ASSIGNMENT: "assigned", "note": "mine"}


@pytest.mark.parametrize("value", ["MiB", None], ids=["set or changed", "removed"])
def test_what_a_pod_requests_is_fixed_once_it_has_a_node(guarded: Cluster, value: str | None) -> None:
    """Its assignment is judged by these annotations: an owner that changed them would make its share look free."""
    unit = "tessera.dev/gpu-memory-unit"
    patch = ("patch", "pod", "a", "--type=merge", "-p", json.dumps({"metadata": {"annotations": {unit: value}}}))
    pod = asking(MEMORY)
    pod["metadata"]["annotations"] = {unit: "GiB"}
    create(guarded, pod, dry=False)
    try:
        guarded.kubectl(*patch, *TENANT)
        guarded.kubectl("annotate", "pod", "a", f"{unit}=GiB", "--overwrite", *TENANT)
        bind(guarded, f"--as={ACCOUNT}server")
        with pytest.raises(Unavailable, match=f"a pod that has a node may not change what it requests .* {unit}"):
            guarded.kubectl(*patch, *TENANT)
        assert guarded.get("pod", "a")["metadata"]["annotations"] == {unit: "GiB", ASSIGNMENT: "assigned"}
        guarded.kubectl(*patch, f"--as={ACCOUNT}agent")
    finally:
        guarded.kubectl("delete", "pod", "a", "--force", "--grace-period=0")


def test_others_may_be_named(bound: Cluster) -> None:
    """A program of the administrator's that restores pods, say."""
    policy = objects("admission/assignments.yaml")[0]
    for each in policy["spec"]["variables"]:
        if each["name"] == "groups":
            each["expression"] = "['restorers']"
    bound.apply(policy)
    pod = annotated(ASSIGNMENT)
    pod["metadata"]["name"] = "restored"

    def taken() -> bool:
        try:
            create(bound, pod, "--as=restorer", "--as-group=restorers", *EVERYBODY)
        except Unavailable:
            return False
        return True

    until("the policy is in force", taken, timeout_s=60)
    with pytest.raises(Unavailable, match="only Tessera assigns GPUs"):
        create(bound, pod, *TENANT)


# Agents


@pytest.fixture(scope="module")
def apart(control_plane: Cluster) -> Iterator[Cluster]:
    """Give a cluster in which agents write to their own nodes: `own` and `other`, each with a pod and a GPUNode."""
    for node in ("own", "other"):
        pod = asking(nodeName=node)
        pod["metadata"]["name"] = f"on-{node}"
        gpunode = {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": node}}
        control_plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}, pod, gpunode)
    admission.install(control_plane, admission.FILES[3:4])
    yield control_plane
    admission.remove(control_plane, admission.FILES[3:4])
    for node in ("own", "other"):
        control_plane.kubectl("delete", "pod", f"on-{node}", "--force", "--grace-period=0")
        control_plane.kubectl("delete", f"node/{node}", f"gpunode/{node}")


def as_agent(cluster: Cluster, folder: Path, *bound: str) -> tuple[str, ...]:
    """Return options that make kubectl an agent, with a token bound to an object."""
    token = cluster.kubectl("create", "token", "tessera-agent", "--namespace=tessera-system", *bound).strip()
    content = json.loads(cluster.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path = folder / "agent.kubeconfig"
    path.write_text(json.dumps(content))
    return (f"--kubeconfig={path}",)


ON_ITS_NODE = ("--bound-object-kind=Node", "--bound-object-name=own")
NOTED = {"annotations": {"a": "1"}}
WRITES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a node": ({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "{}", **NOTED}}, ()),
    "a node's status": (
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "{}"}, "status": {"capacity": {"a.b/c": "1"}}},
        ("--subresource=status",),
    ),
    "a pod": ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-{}", **NOTED}}, ()),
    "a GPUNode's status": (
        {
            "apiVersion": "tessera.dev/v1alpha1",
            "kind": "GPUNode",
            "metadata": {"name": "{}"},
            "status": {"offered": []},
        },
        ("--subresource=status",),
    ),
}


def patch(cluster: Cluster, made: dict[str, Any], node: str, *words: str) -> None:
    """Write to an object of a node by one PATCH: an agent may not get the status alone, as `kubectl patch` does."""
    metadata = {**made["metadata"], "name": made["metadata"]["name"].format(node)}
    text = json.dumps({**made, "metadata": metadata})
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", *words, input_text=text)


@pytest.mark.parametrize("case", WRITES)
def test_an_agent_writes_to_its_own_node_alone(apart: Cluster, tmp_path: Path, case: str) -> None:
    made, words = WRITES[case]
    agent = as_agent(apart, tmp_path, *ON_ITS_NODE)
    patch(apart, made, "own", *words, *agent)
    with pytest.raises(Unavailable, match=r"the agent of node own may not write to .* is not on that node"):
        patch(apart, made, "other", *words, *agent)


BEYOND: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a pod's image": (
        {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "another"}]}},
        (),
    ),
    "a pod's labels": ({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"app": "database"}}}, ()),
    "what keeps a pod": ({"apiVersion": "v1", "kind": "Pod", "metadata": {"finalizers": ["a.b/c"]}}, ()),
    "a node's taints": (
        {"apiVersion": "v1", "kind": "Node", "spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        (),
    ),
    "a node closed to pods": ({"apiVersion": "v1", "kind": "Node", "spec": {"unschedulable": True}}, ()),
    "a label that draws others' pods": (
        {"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"node-restriction.kubernetes.io/pool": "a"}}},
        (),
    ),
    "such a label beside the status": (
        {"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"pool": "a"}}},
        ("--subresource=status",),
    ),
}


@pytest.mark.parametrize("case", BEYOND)
def test_an_agent_changes_of_its_node_and_pods_what_it_is_to_write_and_no_more(
    apart: Cluster, tmp_path: Path, case: str
) -> None:
    """Whoever has its token starts no other program on the node by it, and draws no other pods to it."""
    made, words = BEYOND[case]
    whole = json.dumps({**made, "metadata": {**made.get("metadata", {}), "name": "own"}})
    command: dict[str, tuple[tuple[str, ...], str | None]] = {
        "Pod": (("patch", "pod", "on-own", "-p", json.dumps(made)), None),
        "Node": (("apply", "--server-side", "--force-conflicts", "-f", "-", *words), whole),
    }
    arguments, text = command[made["kind"]]
    with pytest.raises(Unavailable, match="an agent may change of a"):
        apart.kubectl(*arguments, *as_agent(apart, tmp_path, *ON_ITS_NODE), input_text=text)


def test_an_agent_labels_its_node_with_what_it_knows_of_gpus(apart: Cluster, tmp_path: Path) -> None:
    agent = as_agent(apart, tmp_path, *ON_ITS_NODE)
    names = ("nvidia.com/gpu.count=2", "tessera.dev/gpu-revision=1")
    apart.kubectl("label", "node", "own", *names, "--overwrite", *agent)
    apart.kubectl("label", "node", "own", "nvidia.com/gpu.count-", "tessera.dev/gpu-revision-", *agent)
    apart.kubectl("label", "node", "own", "pool=a")
    with pytest.raises(Unavailable, match="not pool"):
        apart.kubectl("label", "node", "own", "pool-", *agent)
    apart.kubectl("label", "node", "own", "pool-")


def test_the_token_of_an_agents_pod_ends_with_the_pod(apart: Cluster, tmp_path: Path) -> None:
    one = asking(nodeName="own", serviceAccountName="tessera-agent")
    one["metadata"] |= {"name": "an-agent", "namespace": "tessera-system"}
    apart.apply(one)
    agent = as_agent(apart, tmp_path, "--bound-object-kind=Pod", "--bound-object-name=an-agent")
    patch(apart, WRITES["a node"][0], "own", *agent)
    apart.kubectl("delete", "pod", "an-agent", "-n", "tessera-system", "--force", "--grace-period=0")

    def refused() -> bool:
        try:
            apart.kubectl("get", "node", "own", *agent)
        except Unavailable as error:
            return "Unauthorized" in str(error) or "logged in" in str(error)
        return False

    until("the token is refused", refused, timeout_s=60)


def test_an_agents_account_without_a_node_writes_nothing(apart: Cluster, tmp_path: Path) -> None:
    agent = as_agent(apart, tmp_path)
    with pytest.raises(Unavailable, match=r"the agent of no node \(its token is not that of a pod\) may not write"):
        patch(apart, WRITES["a node"][0], "own", *agent)


def test_an_agent_makes_no_gpunode_of_another_node(apart: Cluster, tmp_path: Path) -> None:
    apart.kubectl("delete", "gpunode", "other")
    made = json.dumps({"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "other"}})
    with pytest.raises(Unavailable, match="may not write to GPUNode other"):
        apart.kubectl("create", "-f", "-", *as_agent(apart, tmp_path, *ON_ITS_NODE), input_text=made)
    apart.kubectl("create", "-f", "-", input_text=made)
