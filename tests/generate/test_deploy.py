"""What is deployed: generated files are as committed, and no part may do more than it does."""

import json
import os
import pty
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.nodefacts import gpu, node_of
from generate.deploy import write
from tessera.api import documents
from tessera.api.nvidia.gpulabels import Labeling, gpu_labels, stamped
from tessera.api.tessera.node.nodereports import CONDITION, CONFIGURATION
from tessera.api.tessera.storage.nodedisks import CONDITION as DISKS
from tessera.api.tessera.v1alpha1.environments import KIND, read_environment
from tessera.api.tessera.v1alpha1.imagewarmups import IMAGE_WARMUP, read_image_warmup
from tessera.cli.manifests import chart_folder
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.nodesharing import NodeSharing, Strategy, effective
from tessera.errors import InvalidInput
from tessera.server.settings import ServerSettings, is_loopback
from testbed.deploy import FOLDER, NAMESPACE, objects, rendered, scheduler_configuration

CHART = chart_folder()
ALL = {"disks": {"enabled": True}}
"""Values with which every part is installed."""
RIGHTS = sorted(path.name for path in (CHART / "templates" / "rbac").glob("*.yaml"))
PARTS = [name for name in RIGHTS if name != "people.yaml"]
ANY = {"image": {"repository": "tessera"}}
WEBHOOK = {**ANY, "admission": {"routing": "webhook"}}
PODS = ("agent", "server", "controller")


def test_generated_files_are_as_committed(tmp_path: Path) -> None:
    write(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    stale = [str(path) for path, text in made.items() if (FOLDER / path).read_text() != text]
    assert stale == [], "run scripts/generate, look at the result, commit it"
    assert {path.name for path in (CHART / "templates" / "crds").iterdir()} == {
        path.name for path in made if path.parent.name == "crds"
    }


def test_the_charts_version_is_the_programs() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    chart = documents.one("Chart.yaml", (CHART / "Chart.yaml").read_text()).data
    assert isinstance(chart, dict)
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize("file", RIGHTS)
def test_rights_are_listed_one_by_one(file: str) -> None:
    for each in objects(f"rbac/{file}", values=ALL):
        for rule in each.get("rules", ()):
            words = [word for key in ("apiGroups", "resources", "verbs") for word in rule[key]]
            assert "*" not in words
            assert not {"clusterroles", "roles", "serviceaccounts/token"} & set(rule["resources"])
            if "secrets" in rule["resources"]:
                assert (file, each["kind"], rule["resourceNames"]) == (
                    "server.yaml",
                    "Role",
                    ["tessera-assignment-key"],
                )


@pytest.mark.parametrize("file", PARTS)
def test_a_part_has_one_account_in_our_namespace_and_rights_for_it_alone(file: str) -> None:
    account = f"tessera-{file.removesuffix('.yaml')}"
    found = objects(f"rbac/{file}", values=ALL)
    want = [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert [each["metadata"]["name"] for each in found if each["kind"] == "ServiceAccount"] == [account]
    assert all(each["subjects"] == want for each in found if each["kind"].endswith("RoleBinding"))


def test_tessera_itself_is_bound_to_no_role_of_kubernetes() -> None:
    for file in set(PARTS) - {"scheduler.yaml"}:
        roles = {
            each["metadata"]["name"]
            for each in objects(f"rbac/{file}", values=ALL)
            if each["kind"] in {"ClusterRole", "Role"}
        }
        named = {
            each["roleRef"]["name"]
            for each in objects(f"rbac/{file}", values=ALL)
            if each["kind"].endswith("RoleBinding")
        }
        assert named == roles


def kinds(values: dict[str, Any], kube_version: str = "1.36.3") -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in rendered(values, kube_version)}


def test_rights_to_the_metrics_apis_come_with_them() -> None:
    """Who makes its certificate may write one Secret and the three APIServices."""
    found = kinds({**ANY, "metricsApi": {"enabled": True}}) - kinds(ANY)
    roles = {name for kind, name in found if kind.endswith("Role")}
    assert roles == {"tessera-metrics", "tessera-metrics-proxy", "tessera-metrics-certificate"}
    managed = {**ANY, "metricsApi": {"enabled": True}, "admission": {"certificate": {"source": "cert-manager"}}}
    assert {name for kind, name in kinds(managed) if kind.endswith("Role")} - {
        name for kind, name in kinds(ANY) if kind.endswith("Role")
    } == {"tessera-metrics", "tessera-metrics-proxy"}
    (rules,) = (
        each["rules"]
        for each in objects("metrics.yaml")
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "tessera-metrics-certificate")
    )
    services = [each["metadata"]["name"] for each in objects("metrics.yaml") if each["kind"] == "APIService"]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in rules] == [(services, ["get", "patch"])]


def test_each_metrics_api_can_be_left_to_another() -> None:
    for one, other in (("custom", "external"), ("external", "custom")):
        found = kinds({**ANY, "metricsApi": {"enabled": True, one: False}})
        assert {name.split(".")[1] for kind, name in found if kind == "APIService"} == {other}


def test_rights_outside_of_rbac_are_those_for_the_certificate_of_the_webhook_alone() -> None:
    """A server that makes its certificate may write one Secret and one webhook; no other installation gives that."""
    more = kinds(WEBHOOK) - kinds(ANY)
    assert {name for kind, name in more if kind.endswith("Role")} == {"tessera-server-certificate"}
    (cluster,) = (
        each
        for each in rendered(WEBHOOK)
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "tessera-server-certificate")
    )
    (rule,) = cluster["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == (["tessera-scheduler-name"], ["get", "patch"])
    managed = {**ANY, "admission": {"routing": "webhook", "certificate": {"source": "cert-manager"}}}
    assert not any(kind.endswith("Role") for kind, _ in kinds(managed) - kinds(ANY))


def test_the_page_brings_the_rights_to_ask_who_looks_at_it_and_a_sign_in() -> None:
    shown = {**ANY, "server": {"page": True}}
    rules = {
        name: [
            (tuple(rule["resources"]), tuple(rule["verbs"]))
            for each in rendered(values)
            if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "tessera-server")
            for rule in each["rules"]
        ]
        for name, values in (("without", ANY), ("with", shown))
    }
    assert [each for each in rules["with"] if each not in rules["without"]] == [
        (("tokenreviews",), ("create",)),
        (("subjectaccessreviews",), ("create",)),
        (("nodeimages", "nodemodels"), ("get", "list", "watch")),
    ]
    args = pod_template("server", shown)["spec"]["containers"][0]["args"]
    assert {"--page-port=8085", "--page-sign-in=required"} <= set(args)
    assert not any(each.startswith("--page-host") for each in args), "it listens on the loopback alone"


UNINSTALL = (FOLDER / "uninstall").read_text()


def in_uninstall(name: str) -> str:
    """Return the text that deploy/uninstall gives a variable, without running it."""
    return "".join(re.findall(rf"^{name}\+?='([^']+)'$", UNINSTALL, re.MULTILINE))


def test_uninstall_removes_all_kinds() -> None:
    names = [name for kind, name in kinds(ANY) if kind == "CustomResourceDefinition"]
    found = re.search(r"crds=\$\(grep '([^']+)'", UNINSTALL)
    assert found is not None
    assert len(names) > 7
    assert [name for name in names if not re.search(found[1], name)] == []


@pytest.mark.parametrize("version", ["1.35.9", "1.36.3"])
def test_uninstall_removes_all_objects_of_the_chart_that_are_not_in_its_namespace(version: str) -> None:
    everything = {
        **ANY,
        **ALL,
        "agent": {"modelSecrets": ["a"], "pullSecrets": ["b"], "modelPeers": "peers"},
        "metrics": {"podMonitor": True, "alertRules": True, "dashboards": True},
        "metricsApi": {"enabled": True},
        "server": {"page": True},
    }
    apart = {"Namespace", "CustomResourceDefinition", "APIService"}
    found = [
        (
            re.sub("ys$", "ies", re.sub("sss$", "sses", f"{each['kind']}s")).lower(),
            each["metadata"]["name"],
            each["metadata"].get("labels", {}),
        )
        for each in rendered(everything, version)
        if each["metadata"].get("namespace") != NAMESPACE and each["kind"] not in apart
    ]
    assert len(found) > 20
    removed, (label, value) = set(in_uninstall("kinds").split()), in_uninstall("label").split("=")
    assert [one for one in found if one[0] not in removed] == []
    assert [name for _, name, labels in found if not name.startswith("tessera-") or labels.get(label) != value] == []


def test_uninstall_removes_what_agents_write_on_nodes_and_nothing_else() -> None:
    page = (FOLDER.parent / "docs" / "reference" / "names.md").read_text()
    row = re.compile(r"^\| `(\S+)` \| a node \| [^|]* \| (the agent|the disk agent|users) \|", re.MULTILINE)
    written = re.compile(f"{in_uninstall('own')}|{in_uninstall('nvidia')}")
    rows = [(name, by) for name, by in row.findall(page) if name != in_uninstall("counts")]
    assert len(rows) > 8
    assert [name for name, by in rows if bool(written.fullmatch(name)) != (by != "users")] == []
    sliced = gpu(0, "A100-40GB", "all-balanced"), gpu(1, "A100-40GB")
    nodes: dict[Strategy, Inventory] = {
        "mixed": node_of(*sliced),
        "single": node_of(gpu(0, "A100-40GB", "all-1g.5gb")),
        "none": node_of(gpu(0)),
    }
    for strategy, inventory in nodes.items():
        gpus = effective(inventory, NodeSharing(strategy=strategy))
        labels = stamped(gpu_labels(inventory, gpus, Labeling(strategy=strategy)), {}, now_s=1)
        assert [key for key in labels if not written.fullmatch(key)] == []
    others = (
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.deploy.device-plugin",
        "nvidia.com/mig-parted",
        "tessera.dev/agent",
    )
    assert [key for key in others if written.fullmatch(key)] == []
    assert set(in_uninstall("conditions").split()) == {CONDITION, CONFIGURATION, DISKS}


KUBECTL = r"""#!/bin/bash
# Answers as kubectl does in a cluster with one node and a model that its agent removes; FAILS is the read that fails.
if [ "$*" = 'config current-context' ]; then echo "$CONTEXT"; exit; fi
[ "$1 $2" = '--context test' ] || exit 1
shift 2
if [ "$1" = config ]; then echo https://api.example:6443; exit; fi
echo "$*" >>"$CALLS"
[ "$1" = get ] || exit 0
if [ "$(grep -c '^get ' "$CALLS")" = "$FAILS" ]; then
  echo 'Unable to connect to the server: net/http: TLS handshake timeout' >&2
  exit 1
fi
case "$*" in
  'get nodes -o name') echo node/gpu-1 ;;
  'get node/gpu-1 '*annotations*) echo '{"tessera.dev/device-list-strategy":"volume-mounts"}' ;;
  'get node/gpu-1 '*labels*) echo '{"nvidia.com/gpu.count":"1"}' ;;
  'get node/gpu-1 '*status*) echo '{"conditions":[{"type":"TesseraLayoutApplied"}]}' ;;
  'get crds '*)
    printf 'customresourcedefinition.apiextensions.k8s.io/%s.tessera.dev\n' gpupolicies nodeimages nodemodels ;;
  'get nodemodels '*)
    case $(grep -c '^get nodemodels ' "$CALLS") in 1) echo 'gpu-1: models 2024 ' ;; *) echo 'gpu-1: models  ' ;; esac ;;
  'get pods -n tessera-system '*) echo pod/tessera-agent-1 ;;
  'get apiservices '*) echo 'v1beta1.custom.metrics.k8s.io ' ;;
  'get clusterroles -l app.kubernetes.io/name=tessera -o name')
    printf 'clusterrole.rbac.authorization.k8s.io/%s\n' tessera-agent of-an-administrator ;;
  'get roles -n kube-system -l app.kubernetes.io/name!=tessera -o name')
    printf 'role.rbac.authorization.k8s.io/%s\n' tessera-metrics-proxy of-an-administrator ;;
  'get mutatingadmission'*) echo "error: the server doesn't have a resource type \"$2\"" >&2; exit 1 ;;
esac
"""


class Uninstall:
    """deploy/uninstall with a stand-in for kubectl."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "kubectl").write_text(KUBECTL)
        (folder / "sleep").write_text("#!/bin/bash\n")
        for each in ("kubectl", "sleep"):
            (folder / each).chmod(0o755)

    def __call__(
        self, *arguments: str, fails: int = 0, context: str = "test", answer: str | None = None
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """Return how it ended, and the requests to the cluster; with an answer on a terminal."""
        (calls := self._folder / "calls").write_text("")
        path = {"PATH": f"{self._folder}:/usr/bin:/bin", "CALLS": str(calls), "FAILS": str(fails), "CONTEXT": context}
        ours, its = pty.openpty()
        os.write(ours, (answer or "").encode())
        done = subprocess.run(
            (FOLDER / "uninstall", *arguments),
            env=path,
            stdin=subprocess.DEVNULL if answer is None else its,
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(ours)
        os.close(its)
        return done, [line for line in calls.read_text().splitlines() if line]


def test_uninstall_names_the_cluster_and_asks(tmp_path: Path) -> None:
    uninstall = Uninstall(tmp_path)
    for arguments, context, answer, code in (
        ((), "test", "n\n", 1),
        ((), "test", "\n", 1),
        ((), "test", "y\n", 0),
        (("--context", "test"), "other", "y\n", 0),
        (("--yes",), "test", None, 0),
    ):
        done, calls = uninstall(*arguments, context=context, answer=answer)
        assert (done.returncode, bool(calls)) == (code, not code), done.stderr
        assert "from context test, https://api.example:6443" in done.stderr
    done, calls = uninstall()
    assert (done.returncode, calls) == (2, [])
    assert "standard input is no terminal: give --yes" in done.stderr
    for arguments in ((), ("--context", "")):
        done, calls = uninstall(*arguments, "--yes", context="")
        assert (done.returncode != 0, calls) == (True, [])


def test_uninstall_deletes_nothing_after_a_read_that_failed(tmp_path: Path) -> None:
    uninstall = Uninstall(tmp_path)
    done, calls = uninstall("--yes")
    assert (done.returncode, done.stderr.count("\n")) == (0, 2), "it names the cluster, and what stays"
    assert "deploy/uninstall: role.rbac.authorization.k8s.io/tessera-metrics-proxy stays: it lacks" in done.stderr
    assert sum(each.startswith("get nodemodels ") for each in calls) == 2, "it waited for the model, a name of digits"
    order = [calls.index(each) for each in calls if each.startswith(("delete", "patch", "label", "annotate"))]
    assert [calls[each].split()[:2] for each in order] == [
        ["delete", "gpupolicies.tessera.dev"],
        ["delete", "apiservice"],
        ["delete", "clusterrole.rbac.authorization.k8s.io/tessera-agent"],
        ["delete", "customresourcedefinition.apiextensions.k8s.io/gpupolicies.tessera.dev"],
        ["delete", "namespace"],
        ["patch", "node/gpu-1"],
        ["label", "node/gpu-1"],
        ["annotate", "node/gpu-1"],
    ]
    reads = [each for each in calls if each.startswith("get ")]
    assert len(reads) > 20
    for number, read in enumerate(reads, 1):
        done, calls = uninstall("--yes", fails=number)
        said = f"deploy/uninstall: kubectl get {read.split()[1]}: "
        assert (done.returncode, calls[-1]) == (1, read), done.stderr
        assert said in done.stderr
        assert "nothing more is deleted: run it again" in done.stderr


def test_uninstall_refuses_what_it_does_not_know() -> None:
    for argument, code, said in (("--purge", 2, "unknown argument --purge"), ("--help", 0, "docs/install.md lists")):
        command, path = (str(FOLDER / "uninstall"), argument), {"PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True)


def test_a_certificate_of_cert_manager_has_a_subject() -> None:
    """Who signs itself is its own issuer, and RFC 5280, 4.1.2.4, wants an issuer that is not empty."""
    managed = {**ANY, "admission": {"routing": "webhook", "certificate": {"source": "cert-manager"}}}
    (certificate,) = (each["spec"] for each in rendered(managed) if each["kind"] == "Certificate")
    assert [certificate["commonName"]] == certificate["dnsNames"]
    assert len(certificate["commonName"]) <= 64


ROUTING = {
    "by the API server from 1.36 on": ({}, "1.36.0", "MutatingAdmissionPolicy"),
    "by the server before": ({}, "v1.35.9-gke.100", "MutatingWebhookConfiguration"),
    "by the server where asked": ({"routing": "webhook"}, "1.36.3", "MutatingWebhookConfiguration"),
    "not at all": ({"routing": "none"}, "1.36.3", ""),
}


@pytest.mark.parametrize("case", ROUTING)
def test_pods_are_routed_in_one_way(case: str) -> None:
    admission, version, want = ROUTING[case]
    found = {kind for kind, name in kinds({**ANY, "admission": admission}, version) if kind.startswith("Mutating")}
    assert {kind for kind in found if not kind.endswith("Binding")} == {each for each in (want,) if each}


def test_admission_policies_are_in_force_unless_refused() -> None:
    names = ("agents", "assignments", "node-name", "requests")
    policies = {("ValidatingAdmissionPolicy", f"tessera-{name}") for name in names}
    assert policies <= kinds(ANY)
    assert not policies & kinds({**ANY, "admission": {"policies": False}})


PEERS = {**ANY, "agent": {"modelPeers": "tessera-peers"}}
LISTENS = {
    "agents that share models": (PEERS, {9443}),
    "routing by the API server": (ANY, set()),
    "routing by the webhook": (WEBHOOK, {8443}),
}


@pytest.mark.parametrize("case", LISTENS)
def test_network_policies_let_in_what_the_api_server_asks_and_nothing_else(case: str) -> None:
    """Health ports are for probes, which come from the pod's own node and need no rule."""
    values, want = LISTENS[case]
    policies = [each for each in rendered(values) if each["kind"] == "NetworkPolicy"]
    closed = next(each["spec"] for each in policies if each["metadata"]["name"] == "tessera")
    assert (closed["policyTypes"], closed.get("ingress", [])) == (["Ingress", "Egress"], [])
    chosen = closed["podSelector"]["matchLabels"].items()
    for part in PODS:
        assert chosen <= pod_template(part, values)["metadata"]["labels"].items(), "every part is closed"
        assert "hostNetwork" not in pod_template(part, values)["spec"], "a node's network has no NetworkPolicy"
    rules = [rule for each in policies for rule in each["spec"].get("ingress", [])]
    assert {port["port"] for rule in rules for port in rule["ports"]} == want


def test_network_policies_let_out_to_the_ports_named_and_to_pods_of_model_servers_alone() -> None:
    values = {**ANY, "metricsApi": {"enabled": True}}
    policies = [each for each in rendered(values) if each["kind"] == "NetworkPolicy"]
    rules = {each["metadata"]["name"]: each["spec"]["egress"] for each in policies if "egress" in each["spec"]}
    assert rules.keys() == {"tessera", "tessera-models", "tessera-metrics-api"}
    servers = {"matchExpressions": [{"key": "serving.tessera.dev/server", "operator": "Exists"}]}
    assert rules.pop("tessera-metrics-api") == [{"to": [{"namespaceSelector": {}, "podSelector": servers}]}]
    assert [list(rule) for each in rules.values() for rule in each] == [["ports"], ["ports"]]


def test_a_list_of_no_ports_lets_nothing_out() -> None:
    """A rule of a NetworkPolicy whose list of ports is empty lets everything out."""
    ports = ("egressPorts", "modelPorts", "prometheusPorts")
    asking = {
        "server": {"page": True, "prometheus": "http://a"},
        "metricsApi": {"enabled": True, "prometheus": "http://a"},
    }
    for none in ports:
        policies = rendered({**ANY, **asking, "networkPolicies": {none: []}})
        rules = [
            rule for each in policies if each["kind"] == "NetworkPolicy" for rule in each["spec"].get("egress", [])
        ]
        assert rules
        assert all(rule.get("ports") or rule.get("to") for rule in rules)
    none_at_all = rendered({**ANY, **asking, "networkPolicies": {each: [] for each in ports}})
    closed = [each for each in none_at_all if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "tessera"]
    assert [(each["spec"]["policyTypes"], each["spec"].get("egress")) for each in closed] == [
        (["Ingress", "Egress"], None)
    ]


def test_agents_reach_each_other_and_nobody_else_reaches_them_where_they_share_models() -> None:
    policy = next(each for each in rendered(PEERS) if each["metadata"]["name"] == "tessera-peers")
    agents = {"matchLabels": {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "agent"}}
    ports = [{"protocol": "TCP", "port": 9443}]
    assert policy["spec"]["podSelector"] == agents
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": agents}], "ports": ports}]
    assert policy["spec"]["egress"] == [{"to": [{"podSelector": agents}], "ports": ports}]
    spec = pod_template("agent", PEERS)["spec"]
    assert {"--peer-address=$(POD_IP)", "--peer-tls=/run/tessera-peers"} <= set(spec["containers"][0]["args"])
    secret = {"secretName": "tessera-peers", "defaultMode": 0o400}
    assert {"name": "peers-certificate", "secret": secret} in spec["volumes"]
    assert "peer" not in json.dumps(pod_template("agent", ANY)), "without the Secret there are none"


def test_a_page_asks_prometheus_where_one_is_named() -> None:
    server = {"page": True, "prometheus": "http://prometheus.monitoring:9090"}
    shown = {**ANY, "server": server}
    args = pod_template("server", shown)["spec"]["containers"][0]["args"]
    assert "--page-prometheus=http://prometheus.monitoring:9090" in args
    assert not any("selector" in each for each in args)
    of_one = {**ANY, "server": {**server, "prometheusSelector": 'cluster="a"'}}
    assert '--page-prometheus-selector=cluster="a"' in pod_template("server", of_one)["spec"]["containers"][0]["args"]
    egress = {
        each["metadata"]["name"]: {port["port"] for rule in each["spec"]["egress"] for port in rule["ports"]}
        for each in rendered(shown)
        if each["kind"] == "NetworkPolicy"
    }
    assert egress["tessera-page"] == {53, 9090}
    without = {**ANY, "server": {"prometheus": "http://prometheus.monitoring:9090"}}
    assert "prometheus.monitoring" not in json.dumps(rendered(without)), "nothing asks it without the page"


@pytest.mark.parametrize(
    "address", ["http://:9090", "http://", "http:// :9090", "prometheus:9090", "http://a:b", "//a"]
)
@pytest.mark.parametrize("part", ["server", "metricsApi"])
def test_a_prometheus_without_a_host_is_refused(part: str, address: str) -> None:
    """As of a service whose address was not found: `http://$(kubectl get service ...):9090`."""
    with pytest.raises(InvalidInput, match=f"{part}.prometheus.*a URL such as http"):
        rendered({**ANY, part: {"prometheus": address}})
    for fine in ("", "https://u:p@prometheus.monitoring:9090/a?b=c", "http://[fd00::1]:9090"):
        assert rendered({**ANY, part: {"prometheus": fine}})


def test_metrics_are_read_by_those_who_are_named_alone() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    own = {"allowFrom": peers, "podMonitor": True, "podMonitorLabels": {"release": "prom"}}
    values = {**ANY, "metrics": own, "metricsApi": {"enabled": True}}
    objects = rendered(values)
    (policy,) = (
        each for each in objects if (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", "tessera-metrics")
    )
    assert policy["spec"]["ingress"] == [{"from": peers, "ports": [{"protocol": "TCP", "port": 9400}]}]
    monitor = next(each for each in objects if each["kind"] == "PodMonitor")
    assert monitor["metadata"]["labels"] == {"release": "prom"}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True)
    node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
    label = "__meta_kubernetes_pod_label_app_kubernetes_io_component"
    component = {"sourceLabels": [label], "targetLabel": "tessera"}
    assert endpoint["relabelings"][:2] == [node, component], "alerts about an agent name its node, and find it, by them"
    assert endpoint["metricRelabelings"] == [{"regex": "tessera", "action": "labeldrop"}]
    for part in (*PODS, "metrics"):
        spec = pod_template(part, values)
        chosen = monitor["spec"]["selector"]["matchLabels"].items()
        assert chosen <= spec["metadata"]["labels"].items()
        assert spec["metadata"]["labels"]["app.kubernetes.io/component"] == part
        ports = [port for each in spec["spec"]["containers"] for port in each.get("ports", ())]
        assert {"name": "metrics", "containerPort": 9400} in ports
    off = {"enabled": False, "podMonitor": True, "allowFrom": peers}
    without = rendered({**ANY, "metrics": off, "metricsApi": {"enabled": True}})
    assert "9400" not in json.dumps(without)
    assert not [each for each in without if each["kind"] == "PodMonitor"]


def test_alert_rules_and_dashboards_are_installed_as_the_files_have_them() -> None:
    files = FOLDER / "chart/files/monitoring"
    asked = {"alertRules": True, "alertRuleLabels": {"release": "prom"}, "dashboards": True}
    found = {(each["kind"], each["metadata"]["name"]): each for each in rendered({**ANY, "metrics": asked})}
    for name, file in (("tessera", "rules.yaml"), ("tessera-model-servers", "model-servers.yaml")):
        rules = found["PrometheusRule", name]
        assert rules["spec"] == documents.one(file, (files / file).read_text()).data
        assert rules["metadata"]["labels"] == {"release": "prom"}
    dashboards = found["ConfigMap", "tessera-dashboards"]
    assert dashboards["metadata"]["labels"] == {"grafana_dashboard": "1"}
    want = {path.name: json.loads(path.read_text()) for path in (files / "dashboards").iterdir()}
    assert {name: json.loads(text) for name, text in dashboards["data"].items()} == want
    elsewhere = rendered({**ANY, "metrics": {**asked, "runbookUrl": "https://docs.example.com/t/"}})
    text = json.dumps([each for each in elsewhere if each["kind"] == "PrometheusRule"])
    assert '"runbook_url": "https://docs.example.com/t/#tesseragpulost"' in text
    assert "docs/troubleshoot.md" not in text
    for values in ({}, {"metrics": {**asked, "enabled": False}}):
        without = {(each["kind"], each["metadata"]["name"]) for each in rendered({**ANY, **values})}
        assert not without & {("ConfigMap", "tessera-dashboards"), ("PrometheusRule", "tessera")}


@pytest.mark.parametrize("address", ["a\n  b", "a b", "a'", 'a"', "{{ x }}", "https://a#b", "docs/a.md"])
def test_the_address_of_runbooks_cannot_change_the_rules(address: str) -> None:
    with pytest.raises(InvalidInput, match="runbookUrl"):
        rendered({**ANY, "metrics": {"alertRules": True, "runbookUrl": address}})


def test_every_part_that_has_metrics_speaks_tls_with_the_secret() -> None:
    values = {**ANY, "metrics": {"tls": {"secret": "own-certificate"}}, "metricsApi": {"enabled": True}}
    for part in (*PODS, "metrics"):
        found = pod_template(part, values)
        assert found["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
        args = next(each["args"] for each in found["spec"]["containers"] if "--metrics-port=9400" in each["args"])
        assert {"--metrics-certificate=/run/tessera-metrics/tls.crt", "--metrics-key=/run/tessera-metrics/tls.key"} <= {
            *args
        }
        secrets = [each["secret"]["secretName"] for each in found["spec"]["volumes"] if "secret" in each]
        assert "own-certificate" in secrets


CHECKED: dict[str, tuple[dict[str, Any], str]] = {
    "TLS that Prometheus cannot check": (
        {"metrics": {"podMonitor": True, "tls": {"secret": "own"}}},
        "--set metrics.podMonitorTls.serverName=NAME --set metrics.podMonitorTls.ca.secret.name=own",
    ),
    "two agents on a node": (
        {"agent": {"updateStrategy": {"rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}}},
        "the new one would wait for ever; use maxUnavailable",
    ),
    "rules about nobody": (
        {"metricsApi": {"enabled": True, "adapterRules": {"configMap": "rules"}}},
        "--set metricsApi.prometheus=http",
    ),
    "a question to nobody": ({"metricsApi": {"enabled": True, "wakeQuery": "up"}}, "--set metricsApi.prometheus=http"),
}


@pytest.mark.parametrize("case", CHECKED)
def test_values_that_would_not_work_are_refused_with_what_to_set(case: str) -> None:
    values, want = CHECKED[case]
    with pytest.raises(InvalidInput, match=re.escape(want)):
        rendered({**ANY, **values})


def test_agents_may_be_replaced_one_after_the_other_or_by_hand() -> None:
    for strategy in ({"type": "OnDelete"}, {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}):
        assert rendered({**ANY, "agent": {"updateStrategy": strategy}})


def test_a_podmonitor_without_tls_or_tls_without_a_podmonitor_needs_no_more() -> None:
    for metrics in ({"podMonitor": True}, {"tls": {"secret": "own"}}, {"enabled": False, "podMonitor": True}):
        assert rendered({**ANY, "metrics": metrics})


@pytest.mark.parametrize("values", [ANY, WEBHOOK])
def test_the_extender_is_asked_and_answers_on_the_loopback_of_its_pod(values: dict[str, Any]) -> None:
    """Nobody else than the scheduler beside it reaches what binds pods."""
    server, scheduler = pod_template("server", values)["spec"]["containers"]
    assert (server["name"], scheduler["name"]) == ("server", "scheduler")
    assert not any(each.startswith(("--host", "--port", "--tls")) for each in server["args"])
    assert is_loopback(ServerSettings().host)
    (extender,) = scheduler_configuration()["extenders"]
    assert extender["urlPrefix"] == f"http://{ServerSettings().host}:{ServerSettings().port}"


def pod_template(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a part."""
    (found,) = (
        each["spec"]["template"]
        for each in rendered(values)
        if each["kind"] in {"DaemonSet", "Deployment"} and each["metadata"]["name"] == f"tessera-{name}"
    )
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("values", [ANY, WEBHOOK])
@pytest.mark.parametrize("part", ["server", "controller"])
def test_what_needs_nothing_of_the_host_meets_the_restricted_standard(part: str, values: dict[str, Any]) -> None:
    """Source: Kubernetes, Pod Security Standards, `restricted`."""
    spec = pod_template(part, values)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostPID", "hostNetwork", "hostIPC"} & spec.keys()
    assert not any("hostPath" in volume for volume in spec["volumes"])
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_driver_s_folder_is_the_agents_and_its_containers() -> None:
    """Where no runtime of NVIDIA's is, as on GKE: the agent must pass on what it gets itself."""
    folder = "/home/kubernetes/bin/nvidia"
    (container,) = pod_template("agent", {**ANY, "agent": {"driverFolder": folder}})["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["TESSERA_AGENT_DRIVER_FOLDER"] == folder
    assert env["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert {"name": "driver", "mountPath": "/usr/local/nvidia", "readOnly": True} in container["volumeMounts"]


def test_values_reach_the_objects_as_they_are_written() -> None:
    odd = "/a: b #c \"d\" 'e' {f} \\ g"
    agent = {
        key: f"{odd}/{key}"
        for key in ("driverFolder", "kubeletFolder", "runtimeFolder", "modelFolder", "modelSourceFolder")
    }
    found = pod_template("agent", {**ANY, "agent": agent})
    (container,) = found["spec"]["containers"]
    paths = {each["hostPath"]["path"] for each in found["spec"]["volumes"] if "hostPath" in each}
    want = {agent["driverFolder"], f"{agent['kubeletFolder']}/pod-resources", agent["runtimeFolder"]}
    assert want <= paths
    options = {f"--model-dir={agent['modelFolder']}", f"--model-source={agent['modelSourceFolder']}"}
    assert options <= set(container["args"])


def test_the_values_that_the_page_about_clouds_shows_are_the_charts() -> None:
    page = (FOLDER.parent / "docs" / "clouds.md").read_text()
    shown = re.findall(r"^```yaml\n# values of the chart\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown
    for text in shown:
        values = documents.one("docs/clouds.md", text).data
        assert isinstance(values, dict)
        assert pod_template("agent", {**ANY, **values}) != pod_template("agent", ANY)


def test_the_page_about_installing_names_what_the_agent_has_of_the_host() -> None:
    page = (FOLDER.parent / "docs" / "install.md").read_text()
    values = {**ANY, "agent": {"driverFolder": "/home/kubernetes/bin/nvidia"}}
    spec = pod_template("agent", values)["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    paths = [volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume]
    assert [path for path in (*paths, "privileged", "hostPID") if f"`{path}`" not in page] == []


@pytest.mark.parametrize("part", PODS)
def test_every_container_says_how_it_is_and_has_a_limit_of_memory(part: str) -> None:
    for container in pod_template(part, WEBHOOK)["spec"]["containers"]:
        assert {"livenessProbe", "readinessProbe", "resources"} <= container.keys()
        assert "memory" in container["resources"]["limits"]


def test_no_service_sets_an_option() -> None:
    """Kubernetes would put `TESSERA_METRICS_PORT=tcp://...` into pods beside the Service `tessera-metrics`."""
    made = [
        each for each in rendered({**ANY, **ALL, "metricsApi": {"enabled": True}}) if "template" in each.get("spec", {})
    ]
    assert len(made) == 5
    assert [each["spec"]["template"]["spec"]["enableServiceLinks"] for each in made] == [False] * 5


def test_each_program_of_the_servers_pod_has_its_own_token() -> None:
    server, scheduler = pod_template("server", ANY)["spec"]["containers"]
    tokens = [
        [each["name"] for each in container["volumeMounts"] if "serviceaccount" in each["mountPath"]]
        for container in (server, scheduler)
    ]
    assert tokens == [["server-token"], ["scheduler-token"]]


LABELS = {"nvidia.com/gpu.present": "true"}
PLUGIN, CLIENT = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.client"
NODES: dict[str, tuple[dict[str, str], set[str]]] = {
    "no GPU": ({}, set()),
    "a GPU": (LABELS, {"none", "instead"}),
    "a GPU found by NFD": ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, {"none", "instead"}),
    "named by hand": ({"tessera.dev/agent": "true"}, {"none", "instead"}),
    "left out by hand": ({**LABELS, "tessera.dev/agent": "false"}, set()),
    "the operator's plugin runs there": ({**LABELS, PLUGIN: "true"}, {"instead"}),
    "the operator's plugin is switched off there": ({**LABELS, PLUGIN: "false"}, {"none", "beside", "instead"}),
    "the operator pauses its clients": ({**LABELS, PLUGIN: "false", CLIENT: "paused-for-driver-upgrade"}, set()),
    "a client that runs": ({**LABELS, PLUGIN: "false", CLIENT: "true"}, {"none", "beside", "instead"}),
    "AKS": ({"kubernetes.azure.com/accelerator": "nvidia", "agentpool": "gpu"}, {"none", "instead"}),
    "EKS, by Karpenter": ({"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"}, {"none", "instead"}),
    "EKS, AMD's GPUs by Karpenter": ({"karpenter.k8s.aws/instance-gpu-manufacturer": "amd"}, set()),
    "EKS, a managed node group": ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, set()),
    "EKS, one that was labeled": (
        {"node.kubernetes.io/instance-type": "p5.48xlarge", "tessera.dev/agent": "true"},
        {"none", "instead"},
    ),
    "GKE with its own plugin": ({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, set()),
    "GKE without": (
        {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb", "gke-no-default-nvidia-gpu-device-plugin": "true"},
        {"none", "instead"},
    ),
}


def selected(term: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a node selector term takes a node. Source: k8s.io/component-helpers `nodeaffinity`."""

    def meets(condition: dict[str, Any]) -> bool:
        value = labels.get(condition["key"])
        match condition["operator"]:
            case "In":
                return value in condition["values"]
            case "NotIn":
                return value not in condition["values"]
        assert condition["operator"] == "Exists"
        return value is not None

    return all(meets(each) for each in term["matchExpressions"])


@pytest.mark.parametrize("case", NODES)
def test_the_agent_runs_on_its_nodes_and_leaves_the_operators_alone(case: str) -> None:
    labels, want = NODES[case]
    got = set()
    for operator in ("none", "beside", "instead"):
        affinity = pod_template("agent", {**ANY, "nvidia": {"operator": operator}})["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        got |= {operator} if any(selected(term, labels) for term in terms) else set()
    assert got == want


def test_the_example_environments_are_those_of_the_examples() -> None:
    """Each is one that Tessera reads, and all of them are pulled in advance."""
    example = FOLDER.parent / "examples/10-environments/environments.yaml"
    assert example.is_symlink(), "one file for both"
    found = [each for each in rendered({**ANY, "exampleEnvironments": True}) if each["kind"] in {KIND, IMAGE_WARMUP}]
    assert found == list(yaml.safe_load_all(example.read_text()))
    assert not [each for each in rendered(ANY) if each["kind"] in {KIND, IMAGE_WARMUP}]
    environments = [read_environment(each) for each in found if each["kind"] == KIND]
    assert [each.name for each in environments if each.notebook] == ["jupyter"]
    (warmup,) = (each for each in found if each["kind"] == IMAGE_WARMUP)
    images = read_image_warmup(warmup, frozenset(), environments)[1].images
    assert images == tuple(each.full_image for each in environments)


def test_what_holds_data_stays_when_the_chart_goes() -> None:
    kept = {
        (each["kind"], each["metadata"]["name"])
        for each in rendered({**ANY, "createNamespace": True})
        if each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {
        ("Namespace", NAMESPACE),
        *(
            ("CustomResourceDefinition", f"{kind}.tessera.dev")
            for kind in (
                "environments",
                "gpunodes",
                "gpupolicies",
                "imagewarmups",
                "modelcaches",
                "modelservers",
                "nodeimages",
                "nodemodels",
            )
        ),
    }
