"""The chart in the real Helm and the real API server: rendered as by `tessera manifests`, installed, upgraded, gone."""

import base64
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kube.conftest import fresh
from kube.fakenodes import FakeNode
from kube.helm import Helm
from tessera.api import documents
from tessera.api.tessera.chart.installation import read_values
from tessera.api.tessera.pods.signatures import SECRET
from tessera.cli.manifests import chart_folder
from tessera.errors import InvalidInput, Unavailable
from testbed.cluster import Cluster, Desired
from testbed.deploy import KUBE_VERSION, NAMESPACE, rendered
from testbed.processes import until

IMAGE = {"image": {"repository": "registry.example/tessera"}}
OLDER = "v1.34.5-gke.1080000"
MORE = {
    "image": {"repository": "registry.example/tessera", "tag": "1", "pullSecrets": [{"name": "registry"}]},
    "nvidia": {"operator": "beside"},
    "agent": {
        "runtimeClassName": "nvidia",
        "driverFolder": "/home/kubernetes/bin/nvidia",
        "gpuLabels": False,
        "args": ["--evict"],
        "env": [{"name": "A", "value": "1"}],
        "volumes": [{"name": "sharing", "configMap": {"name": "sharing"}}],
        "volumeMounts": [{"name": "sharing", "mountPath": "/etc/tessera/sharing"}],
        "nodeSelector": {"pool": "gpus"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "resources": {"limits": {"memory": "1Gi"}},
    },
    "server": {"replicas": 3, "args": ["--policy=best-fit"], "tolerations": [{"operator": "Exists"}]},
    "scheduler": {"image": {"tag": "v1.34.5"}, "args": ["--v=2"]},
    "controller": {"replicas": 1, "args": ["--interval-s=5"], "affinity": {"nodeAffinity": {}}},
    "disks": {"enabled": True, "volumes": 4, "reserveGib": 500, "args": ["--select=/dev/nvme1n1"]},
    "metrics": {
        "allowFrom": [{"namespaceSelector": {}}],
        "tls": {"secret": "tessera-metrics", "clientAuthority": True},
    },
    "metricsApi": {
        "enabled": True,
        "prometheus": "http://prometheus.monitoring:9090",
        "wakeQuery": 'sum by (namespace, service) (gateway_queue{gateway="own"})',
        "adapterRules": {"configMap": "adapter-rules", "key": "rules.yaml"},
        "args": ["--log-level=debug"],
        "nodeSelector": {"pool": "system"},
    },
    "gpuPolicy": {"priority": 5},
    "exampleEnvironments": True,
    "logLevel": "debug",
}
VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "the least": (IMAGE, KUBE_VERSION),
    "before 1.36": (IMAGE, OLDER),
    "with its namespace": ({**IMAGE, "createNamespace": True}, KUBE_VERSION),
    "much": (MORE, OLDER),
    "a Prometheus and a Grafana": (
        {
            **IMAGE,
            "metrics": {
                "podMonitor": True,
                "podMonitorLabels": {"release": "prometheus"},
                "tls": {"secret": "tessera-metrics"},
                "podMonitorTls": {"serverName": "tessera-metrics"},
                "alertRules": True,
                "alertRuleLabels": {"release": "prometheus"},
                "runbookUrl": "https://docs.example.com/troubleshoot/",
                "dashboards": True,
            },
        },
        KUBE_VERSION,
    ),
    "cert-manager": ({**IMAGE, "admission": {"certificate": {"source": "cert-manager"}}}, OLDER),
    "cert-manager's issuer": (
        {
            **IMAGE,
            "metricsApi": {"enabled": True, "external": False},
            "admission": {
                "routing": "webhook",
                "certificate": {"source": "cert-manager", "issuer": {"kind": "ClusterIssuer", "name": "internal"}},
            },
        },
        KUBE_VERSION,
    ),
    "little": (
        {
            "image": {"repository": "a/b", "digest": "sha256:" + "0" * 64},
            "nvidia": {"operator": "instead"},
            "agent": {"affinity": {"nodeAffinity": {}}},
            "scheduler": {"image": {"digest": "sha256:" + "4" * 64}},
            "admission": {"policies": False, "routing": "none"},
            "crds": {"install": False},
            "networkPolicies": {"enabled": False},
            "resourceQuota": False,
        },
        KUBE_VERSION,
    ),
    "no ports": (
        {
            **IMAGE,
            "networkPolicies": {"egressPorts": [], "modelPorts": [], "prometheusPorts": []},
            "server": {"page": True, "prometheus": "http://prometheus"},
            "metricsApi": {"enabled": True, "prometheus": "http://prometheus"},
        },
        KUBE_VERSION,
    ),
}


def by_name(objects: Any) -> dict[str, Any]:
    found = {f"{each['kind']} {each['metadata']['name']}": each for each in objects}
    assert len(found) == len(objects), "no object twice"
    return found


# Rendering


@pytest.mark.parametrize("case", VALUES)
def test_manifests_renders_what_helm_renders(helm: Helm, case: str) -> None:
    values, version = VALUES[case]
    said = helm.run("template", "tessera", str(chart_folder()), "--kube-version", version, values=values)
    want = [each.data for each in documents.read("helm", said) if each.data is not None]
    assert by_name(rendered(values, version)) == by_name(want)


@pytest.mark.parametrize("case", VALUES)
def test_helm_finds_nothing_to_mend(helm: Helm, case: str) -> None:
    values, version = VALUES[case]
    helm.run("lint", "--strict", "--kube-version", version, str(chart_folder()), values=values)


REFUSED: dict[str, dict[str, Any]] = {
    "an unknown value": {**IMAGE, "agent": {"gpuLabel": True}},
    "another type": {**IMAGE, "server": {"replicas": "2"}},
    "a word that is none": {**IMAGE, "nvidia": {"operator": "with"}},
    "no image": {"logLevel": "debug"},
    "TLS that Prometheus cannot check": {**IMAGE, "metrics": {"podMonitor": True, "tls": {"secret": "own"}}},
    "rules about nobody": {**IMAGE, "metricsApi": {"enabled": True, "adapterRules": {"configMap": "rules"}}},
    "a question to nobody": {**IMAGE, "metricsApi": {"enabled": True, "wakeQuery": "up"}},
    "null for many values": {**IMAGE, "agent": None},
    "null for some": {**IMAGE, "scheduler": {"image": None}},
    "null for a folder": {**IMAGE, "agent": {"kubeletFolder": None}},
    "null for what protects": {**IMAGE, "admission": {"policies": None}},
    "null for a list": {**IMAGE, "agent": {"tolerations": None}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_helm_refuses_what_manifests_refuses(helm: Helm, case: str) -> None:
    with pytest.raises(InvalidInput):
        rendered(REFUSED[case])
    with pytest.raises(AssertionError, match=r"don't meet the specifications|checks\.yaml"):
        helm.run("template", "tessera", str(chart_folder()), values=REFUSED[case])


EVIL = "x\"'\n        - --evil\n        evil: [evil]\n---\nkind: Secret\n# {{ .Values }}"
CHOICES = {"operator", "routing", "source", "folder", "name"}
"""Words that choose what is rendered, and those of disks, which the schema alone guards."""


def test_text_stays_in_its_place_though_the_schema_is_not_asked(helm: Helm) -> None:
    """Every text of the values tries to end its line, to add an option, a field and an object."""

    def everywhere(values: Any, text: str) -> Any:
        if isinstance(values, dict):
            return {key: each if key in CHOICES else everywhere(each, text) for key, each in values.items()}
        return text if isinstance(values, str) else [text] if values == [] else values

    def parts(data: Any) -> list[str]:
        if isinstance(data, dict):
            return [*data, *(part for each in data.values() for part in parts(each))]
        return [part for each in data for part in parts(each)] if isinstance(data, list) else [str(data).strip()]

    objects = {}
    for text in ("x", EVIL):
        values = everywhere(read_values({"disks": {"enabled": True}, "metricsApi": {"enabled": True}}), text)
        values["metrics"]["allowFrom"] = values["image"]["pullSecrets"] = []
        values["agent"] |= {"env": [], "volumes": [], "volumeMounts": []}
        words = ("template", "tessera", str(chart_folder()), "--kube-version", OLDER, "--skip-schema-validation")
        said = documents.read("helm", helm.run(*words, values=values))
        objects[text] = by_name([each.data for each in said if each.data is not None])
    assert objects["x"].keys() == objects[EVIL].keys()
    assert not {"evil", "--evil", "- --evil"} & set(parts(list(objects[EVIL].values())))


# In a cluster


@pytest.fixture(scope="module")
def cluster(program_folder: Path) -> Iterator[Cluster]:
    """Give a cluster of nodes that are objects: `own` and `other`, with GPUs, and `plain`."""
    testbed = fresh("chart", program_folder)
    try:
        testbed.up(Desired(nodes=0))
        for name, labels in (("own", GPU), ("other", GPU), ("plain", {})):
            node = FakeNode(name=name, labels={"kubernetes.io/hostname": name, **labels}).node()
            testbed.kubectl("create", "-f", "-", input_text=json.dumps(node))
            testbed.kubectl("patch", "node", name, "-p", json.dumps({"spec": {"taints": None}}))
            status = json.dumps({"status": node["status"]})
            testbed.kubectl("patch", "node", name, "--subresource=status", "-p", status)
        yield testbed
    finally:
        testbed.down()


HOOK = ("mutatingwebhookconfiguration", "tessera-scheduler-name")
GPU = {"nvidia.com/gpu.present": "true"}


@pytest.mark.parametrize("case", ["the least", "before 1.36", "much", "little"])
def test_the_api_server_knows_every_field(cluster: Cluster, case: str) -> None:
    """Nothing is stored."""
    for each in rendered(*VALUES[case]):
        cluster.kubectl(
            *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"),
            input_text=json.dumps(each),
        )


def test_cert_managers_kinds_know_every_field(cluster: Cluster, cert_manager: Path) -> None:
    for definition in cert_manager.glob("*.yaml"):
        cluster.kubectl("apply", "--server-side", "-f", str(definition))
    cluster.await_kinds("certificates.cert-manager.io", "issuers.cert-manager.io")
    for case in ("cert-manager", "cert-manager's issuer"):
        test_the_api_server_knows_every_field(cluster, case)


def pods(cluster: Cluster, part: str) -> list[dict[str, Any]]:
    found = cluster.get("pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/component={part}")["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


@pytest.fixture(scope="module")
def installed(cluster: Cluster, helm: Helm) -> Cluster:
    """Give the cluster with the chart, over the kinds and rights that were applied before without Helm."""
    chart = str(chart_folder())
    helm.run("install", "tessera", chart, "--take-ownership", "--force-conflicts", values=IMAGE, cluster=cluster)
    for part in ("agent", "server", "controller"):
        until(f"{part} has nodes", partial(two_nodes, cluster, part), timeout_s=90)
    return cluster


def nodes_of(cluster: Cluster, part: str) -> set[str]:
    return {each["spec"].get("nodeName", "") for each in pods(cluster, part)}


def two_nodes(cluster: Cluster, part: str) -> bool:
    return len(nodes_of(cluster, part) - {""}) == len(pods(cluster, part)) == 2


def test_agents_are_on_gpu_nodes_alone(installed: Cluster) -> None:
    assert nodes_of(installed, "agent") == {"own", "other"}


def as_agent(cluster: Cluster, folder: Path) -> str:
    """Return the option that makes kubectl the agent's pod on `own`."""
    (pod,) = (each for each in pods(cluster, "agent") if each["spec"]["nodeName"] == "own")
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}", f"--bound-object-uid={uid}")
    token = cluster.kubectl("create", "token", "tessera-agent", "-n", NAMESPACE, *bound).strip()
    content = json.loads(cluster.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path = folder / "agent.kubeconfig"
    path.write_text(json.dumps(content))
    return f"--kubeconfig={path}"


def test_an_agents_pod_changes_its_own_node_and_the_pods_on_it_alone(installed: Cluster, tmp_path: Path) -> None:
    agent = as_agent(installed, tmp_path)
    note = ("--overwrite", "note=1")
    names = {each["spec"]["nodeName"]: each["metadata"]["name"] for each in pods(installed, "agent")}

    def write(node: str) -> None:
        installed.kubectl("annotate", "node", node, *note, agent)
        installed.kubectl("annotate", "pod", names[node], "-n", NAMESPACE, *note, agent)

    write("own")
    with pytest.raises(Unavailable, match="the agent of node own may not write to Node other"):
        installed.kubectl("annotate", "node", "other", *note, agent)
    with pytest.raises(Unavailable, match="the agent of node own may not write to Pod"):
        installed.kubectl("annotate", "pod", names["other"], "-n", NAMESPACE, *note, agent)
    made = {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "other"}}
    with pytest.raises(Unavailable, match="may not write to GPUNode other"):
        installed.kubectl("create", "-f", "-", agent, input_text=json.dumps(made))
    for forbidden in (("get", "secrets", "-n", NAMESPACE), ("delete", "node", "own")):
        with pytest.raises(Unavailable, match="forbidden"):
            installed.kubectl(*forbidden, agent)


def test_the_second_scheduler_has_a_token_of_its_own(installed: Cluster) -> None:
    def token() -> str:
        found: str = (
            installed.get("secret", "tessera-scheduler-token", "-n", NAMESPACE).get("data", {}).get("token", "")
        )
        return found

    until("the token", lambda: bool(token()), timeout_s=60)
    claims = base64.b64decode(token()).decode().split(".")[1]
    said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert said["sub"] == f"system:serviceaccount:{NAMESPACE}:tessera-scheduler"


def levels(cluster: Cluster) -> set[str]:
    """Return the log levels of Tessera's processes, as the cluster has them."""
    found = [
        *cluster.get("daemonsets", "-n", NAMESPACE)["items"],
        *cluster.get("deployments", "-n", NAMESPACE)["items"],
    ]
    assert len(found) == 3
    options = (
        option
        for each in found
        for container in each["spec"]["template"]["spec"]["containers"]
        for option in container.get("args", ())
    )
    return {option.partition("=")[2] for option in options if option.startswith("--log-level=")}


def state(cluster: Cluster, helm: Helm) -> str:
    """Return the state of the last revision."""
    found: str = json.loads(helm.run("history", "tessera", "-o", "json", cluster=cluster))[-1]["status"]
    return found


@pytest.mark.parametrize(("after_s", "level"), [(0.0, "debug"), (0.3, "warning"), (0.7, "error")])
def test_an_upgrade_that_was_killed_is_rolled_back_and_made_again(
    installed: Cluster, helm: Helm, after_s: float, level: str
) -> None:
    """As docs/install.md says, however many objects it had changed."""
    chart, values = str(chart_folder()), {**IMAGE, "logLevel": level}

    def begun() -> bool:
        return bool(installed.get("secrets", "-n", NAMESPACE, "-l", "owner=helm,status=pending-upgrade")["items"])

    with helm.start("upgrade", "tessera", chart, values=values, cluster=installed) as running:
        until("the upgrade has begun", begun, timeout_s=60)
        time.sleep(after_s)
        running.kill()
        running.communicate()
    if state(installed, helm) == "pending-upgrade":  # else it was done by then
        with pytest.raises(AssertionError, match="another operation"):
            helm.run("upgrade", "tessera", chart, values=values, cluster=installed)
        helm.run("rollback", "tessera", cluster=installed)
        assert state(installed, helm) == "deployed"
        assert levels(installed) == {"info"}
    helm.run("upgrade", "tessera", chart, values=values, cluster=installed)
    assert state(installed, helm) == "deployed"
    assert levels(installed) == {level}
    helm.run("upgrade", "tessera", chart, values=IMAGE, cluster=installed)


def test_of_two_upgrades_at_once_one_is_refused_or_both_are_made(installed: Cluster, helm: Helm) -> None:
    chart = str(chart_folder())
    asked = [{**IMAGE, "logLevel": level} for level in ("debug", "error")]
    running = [helm.start("upgrade", "tessera", chart, values=each, cluster=installed) for each in asked]
    said = [each.communicate()[1] for each in running]
    made = [values["logLevel"] for values, each in zip(asked, running, strict=True) if each.returncode == 0]
    assert made
    refused = [text for text, each in zip(said, running, strict=True) if each.returncode]
    assert all("another operation" in text or "already exists" in text for text in refused), said
    assert state(installed, helm) == "deployed"
    assert levels(installed) in [{level} for level in made], "one of them, not a mixture"
    helm.run("upgrade", "tessera", chart, values=IMAGE, cluster=installed)
    assert levels(installed) == {"info"}


def test_upgrade_rollback_and_uninstall_keep_what_runs_and_what_was_written(installed: Cluster, helm: Helm) -> None:
    """What a user runs and what Tessera recorded is there afterwards, unchanged; the definitions too."""
    user = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user", "namespace": "default"}}
    user["spec"] = {"containers": [{"name": "main", "image": "none"}], "nodeName": "own"}
    policy = {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": "mine"}, "spec": {}}
    node = {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "own"}}
    key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}}
    installed.apply(user, policy, node, key)
    kept = (("pod", "user"), ("gpupolicy", "mine"), ("gpunode", "own"), ("secret", SECRET, "-n", NAMESPACE))
    before = [installed.get(*each)["metadata"]["uid"] for each in kept]
    definition = installed.get("crd", "gpunodes.tessera.dev")["metadata"]["uid"]

    def unharmed() -> None:
        assert [installed.get(*each)["metadata"]["uid"] for each in kept] == before
        assert installed.get("crd", "gpunodes.tessera.dev")["metadata"]["uid"] == definition

    def level() -> str:
        found = installed.get("daemonset", "tessera-agent", "-n", NAMESPACE)["spec"]["template"]["spec"]
        return str(found["containers"][0]["args"])

    as_server = f"--as=system:serviceaccount:{NAMESPACE}:tessera-server"
    chart = str(chart_folder())
    first = str(json.loads(helm.run("history", "tessera", "-o", "json", cluster=installed))[-1]["revision"])
    more: dict[str, Any] = {**IMAGE, "logLevel": "debug", "admission": {"routing": "webhook"}}
    helm.run("upgrade", "tessera", chart, values=more, cluster=installed)
    authority = base64.b64encode(installed.pki.certificate("ca").read_bytes()).decode()
    written = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": authority}]
    installed.kubectl("patch", *HOOK, "--type=json", "-p", json.dumps(written), as_server)
    more = {**more, "gpuPolicy": {"priority": 3}, "exampleEnvironments": True}
    helm.run("upgrade", "tessera", chart, values=more, cluster=installed)
    assert installed.get(*HOOK)["webhooks"][0]["clientConfig"]["caBundle"] == authority, "as the servers wrote it"
    assert "--log-level=debug" in level()
    assert installed.get("gpupolicy", "default")["spec"]["priority"] == 3
    environments = {each["metadata"]["name"] for each in installed.get("environments")["items"]}
    assert environments == {"cuda", "jupyter", "pytorch"}
    assert installed.get("imagewarmup", "environments")["spec"]["environments"] == {}
    unharmed()
    helm.run("rollback", "tessera", first, cluster=installed)
    assert "--log-level=info" in level()
    unharmed()
    helm.run("uninstall", "tessera", cluster=installed)
    until("its pods are gone", lambda: not pods(installed, "agent") + pods(installed, "server"), timeout_s=90)
    unharmed()
    assert not installed.get("validatingadmissionpolicies")["items"]
