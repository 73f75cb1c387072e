"""The values of the Helm chart: an administrator's settings of an installation, with defaults and their reasons.

`tessera manifests` reads values by the records here; `generate/valuesreference.py` describes them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from tessera.api.documents import Plain
from tessera.api.tessera.chart.refusedvalues import refused_value
from tessera.errors import InvalidInput, shown

__all__ = ["AGENT_LABEL", "MODULE", "Values", "read_values"]

MODULE: Final = __name__
"""Key of this module's text for `descriptions`."""

AGENT_LABEL: Final = "tessera.dev/agent"
"""Label of a node: `true` adds an agent where nothing else says that it has GPUs, `false` keeps it away. Set by users;
read by the DaemonSet of the agent."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Folder = Annotated[str, msgspec.Meta(pattern=r"^/[^\x00-\x1f]*$", description="an absolute path")]
_OptionalFolder = Annotated[str, msgspec.Meta(pattern=r"^(/[^\x00-\x1f]*)?$", description="an absolute path")]
_OptionalPrometheus = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(https?://([^/?#@\x00-\x20]+@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?([/?][^\x00-\x20]*)?)?$",
        description="a URL such as http://prometheus.monitoring:9090",
    ),
]
_Matchers = Annotated[
    str,
    msgspec.Meta(pattern=r"^[^{}\x00-\x1f]*$", description='label matchers of PromQL such as `cluster="a"`'),
]
_REGISTRY = r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]+)?"
_Repository = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^(({_REGISTRY}/)?[a-z0-9]+([._/-]+[a-z0-9]+)*)?$",
        description="a registry and a name, as registry.example/tessera; tag and digest are values of their own",
    ),
]
_Url = Annotated[
    str, msgspec.Meta(pattern=r"^(https?://[A-Za-z0-9:/._~%?=&+-]+)?$", description="http:// or https://, without #")
]
_Tag = Annotated[str, msgspec.Meta(pattern="^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$", description="a tag, as 0.1.0")]
_Digest = Annotated[str, msgspec.Meta(pattern="^(sha256:[0-9a-f]{64})?$", description="sha256: and 64 digits, 0 to f")]
"""Source of the three: distribution/reference `regexp.go`."""
_Strings = dict[str, str]
_Objects = tuple[dict[str, Any], ...]
_PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class _Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Part of the values."""


class ImageValues(_Record, frozen=True, kw_only=True):
    """The image of agent, server and controller."""

    repository: _Repository = ""
    """Registry and name, `registry.example/tessera`. Required: no image is published yet."""
    tag: _Tag = ""
    """Empty for the version of the chart."""
    digest: _Digest = ""
    """`sha256:...`; takes precedence over the tag."""
    pull_policy: _PullPolicy = "IfNotPresent"
    """When the kubelet pulls."""
    pull_secrets: _Objects = ()
    """Secrets of tessera-system for the registry, for all pods: `[{name: registry}]`."""


class Nvidia(_Record, frozen=True, kw_only=True):
    """NVIDIA's own software in the cluster."""

    operator: Literal["none", "beside", "instead"] = "none"
    """`none`: the GPU operator is not installed; the agent runs on every GPU node. `beside`: it is, and the agent
    runs only on nodes where label `nvidia.com/gpu.deploy.device-plugin` is `false`; all others stay the operator's.
    `instead`: it is, without device plugin and MIG manager, and the agent runs on all of its GPU nodes."""


def _requests(cpu: str, memory: str, most: str) -> Any:
    return msgspec.field(
        default_factory=lambda: {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": most}}
    )


def _one_node_at_a_time() -> dict[str, Any]:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}


class AgentValues(_Record, frozen=True, kw_only=True):
    """The DaemonSet on GPU nodes."""

    runtime_class_name: str = ""
    """RuntimeClass that gives the agent the driver's library: `nvidia` where NVIDIA's container runtime is not the
    default one. Empty where it is, or with `driverFolder`."""
    driver_folder: _OptionalFolder = ""
    """Host folder with the driver's `lib64` and `bin`, where no NVIDIA runtime is: `/home/kubernetes/bin/nvidia` on
    GKE. Containers with a GPU get it at `/usr/local/nvidia` too."""
    kubelet_folder: _Folder = "/var/lib/kubelet"
    """Root folder of the kubelet, with the pod-resources socket that the agent reads."""
    runtime_folder: _Folder = "/run/containerd"
    """Host folder of containerd's socket, `containerd.sock`, by which the agent pulls and pins the images of
    ImageWarmups: `/run/k3s/containerd` on k3s."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets of tessera-system that ImageWarmups may name, the only ones that the agent may read: `[registry]`."""
    model_folder: _Folder = "/mnt/disks/tessera/models"
    """Host folder for the models of ModelCaches; what it lies in must exist. By default on the disks that
    `tessera disks` mounts. No folder that nodes share: each would remove models that only others have."""
    model_secrets: tuple[str, ...] = ()
    """Secrets of tessera-system that ModelCaches may name, the only ones that the agent may read: `[bucket]`."""
    model_peers: str = ""
    """Secret of tessera-system with `tls.crt`, `tls.key` and `ca.crt`, as cert-manager writes it, by which agents give
    each other chunks of models; its certificate has the DNS name `tessera-peers.tessera-system.svc`. Empty for none:
    each node then reads its sources alone."""
    model_source_folder: _OptionalFolder = ""
    """Host folder below which ModelCaches may name `file://` sources, as where NFS or CephFS is mounted; empty for
    none, and `--model-source` in `agent.args` for more."""
    gpu_labels: bool = True
    """Set the labels of GPU Feature Discovery; `false` if it runs on the same nodes."""
    args: tuple[str, ...] = ()
    """More options of `tessera agent`."""
    env: _Objects = ()
    """More environment variables, as in a container."""
    volumes: _Objects = ()
    """More volumes, as in a pod: for a sharing file, say."""
    volume_mounts: _Objects = ()
    """Where they are mounted."""
    node_selector: _Strings = {}
    """Only nodes with these labels, of those that `nvidia.operator` and label `tessera.dev/agent` leave."""
    affinity: dict[str, Any] = {}
    """Replaces the choice of nodes by `nvidia.operator`."""
    tolerations: _Objects = ({"operator": "Exists"},)
    """Taints of GPU nodes; all by default, because a GPU node without an agent has no GPUs for pods."""
    update_strategy: dict[str, Any] = msgspec.field(default_factory=_one_node_at_a_time)
    """How many nodes at once get a new agent. Running pods are not touched; new ones wait on a node for some
    seconds."""
    priority_class_name: str = "system-node-critical"
    """So that the agent is not preempted by pods."""
    resources: dict[str, Any] = _requests("50m", "128Mi", "512Mi")
    """A node of 56 MIG instances takes 1 % of a core and 90 MB. Memory has a limit, processor time has none."""


class ServerValues(_Record, frozen=True, kw_only=True):
    """The Deployment of server and second scheduler, both in one pod."""

    replicas: _Count = 2
    """All servers work; one of the schedulers leads."""
    page: bool = False
    """Serve the dashboard page inside of the pods, for `kubectl port-forward`; viewers sign in with a
    Kubernetes token."""
    prometheus: _OptionalPrometheus = ""
    """URL of a Prometheus that the page queries for GPU utilization and the last hour of model servers; empty for
    none. Its port is one of `networkPolicies.prometheusPorts`."""
    prometheus_selector: _Matchers = ""
    """Labels by which that Prometheus tells this cluster's series from those of others: `cluster="a"`; empty where it
    has those of one cluster."""
    args: tuple[str, ...] = ()
    """More options of `tessera server`."""
    node_selector: _Strings = {}
    """Only nodes with these labels."""
    affinity: dict[str, Any] = {}
    """As in a pod."""
    tolerations: _Objects = ()
    """As in a pod."""
    priority_class_name: str = "system-cluster-critical"
    """So that it is not preempted by pods that cannot be placed without it."""
    resources: dict[str, Any] = _requests("100m", "256Mi", "2Gi")
    """Of the server; memory grows with nodes and pods."""


class SchedulerImage(_Record, frozen=True, kw_only=True):
    """The upstream kube-scheduler."""

    repository: _Repository = "registry.k8s.io/kube-scheduler"
    """Registry and name."""
    tag: _Tag = ""
    """Empty for the cluster's version: a scheduler must not be newer than the API server."""
    digest: _Digest = ""
    """`sha256:...`; takes precedence over the tag."""
    pull_policy: _PullPolicy = "IfNotPresent"
    """When the kubelet pulls."""


class Scheduler(_Record, frozen=True, kw_only=True):
    """The second scheduler, `tessera-scheduler`."""

    image: SchedulerImage = SchedulerImage()
    args: tuple[str, ...] = ()
    """More options of kube-scheduler."""
    resources: dict[str, Any] = _requests("100m", "128Mi", "1Gi")
    """Memory grows with nodes and pods."""


class ControllerValues(_Record, frozen=True, kw_only=True):
    """The Deployment of the controller."""

    replicas: _Count = 2
    """One leads, the others stand by."""
    args: tuple[str, ...] = ()
    """More options of `tessera controller`."""
    node_selector: _Strings = {}
    """Only nodes with these labels."""
    affinity: dict[str, Any] = {}
    """As in a pod."""
    tolerations: _Objects = ()
    """As in a pod."""
    priority_class_name: str = "system-cluster-critical"
    """So that it is not preempted by pods that wait for MIG instances."""
    resources: dict[str, Any] = _requests("50m", "192Mi", "1Gi")
    """Memory grows with nodes and pods."""


class DiskValues(_Record, frozen=True, kw_only=True):
    """Local disks of nodes as one filesystem; see docs/disks.md."""

    enabled: bool = False
    """Run the disk agent, a privileged DaemonSet."""
    folder: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(/[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*)+$",
            description="an absolute path of letters, digits and _ . -",
        ),
    ] = "/mnt/disks"
    """Host folder in which the filesystem is mounted, by its name."""
    name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,11}$",
            description="up to 12 letters, digits and _ . -, no mark first",
        ),
    ] = "tessera"
    """Of the array, the filesystem and its folder; by it they are recognized."""
    filesystem: Literal["ext4", "xfs"] = "ext4"
    """For a new one; one that exists is kept."""
    volumes: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Local PersistentVolumes to offer of each node's disks, of StorageClass `tessera-local`."""
    reserve_gib: Annotated[int, msgspec.Meta(ge=0, le=999_999)] = 0  # Helm prints a file's 1000000 as 1e+06
    """Of each node's disks, the part without volumes: the room of models, data sets and images."""
    args: tuple[str, ...] = ()
    """More options of `tessera disk-agent`: `[--select=/dev/nvme1n1]` if the disks are none of GKE, EKS or AKS."""
    node_selector: _Strings = {}
    """Only nodes with these labels."""
    tolerations: _Objects = ({"operator": "Exists"},)
    """As in a pod."""
    resources: dict[str, Any] = _requests("10m", "64Mi", "256Mi")
    """`mdadm` and `mkfs` run in it."""


class AdapterRulesFile(_Record, frozen=True, kw_only=True):
    """Rules of prometheus-adapter."""

    config_map: str = ""
    """ConfigMap of tessera-system; empty for none."""
    key: str = "config.yaml"
    """Its key; prometheus-adapter's chart uses this one."""


class MetricsApi(_Record, frozen=True, kw_only=True):
    """The Deployment of the metrics APIs, which also decides how many replicas each model server needs."""

    enabled: bool = False
    """Off, because a cluster has each of these APIs once: KEDA serves `external`, a Prometheus adapter `custom`."""
    custom: bool = True
    """Serve `custom.metrics.k8s.io`."""
    external: bool = True
    """Serve `external.metrics.k8s.io`."""
    prometheus: _OptionalPrometheus = ""
    """URL of a Prometheus that scrapes the pods of model servers, queried instead of the pods; empty for none.
    Its port is one of `networkPolicies.prometheusPorts`."""
    prometheus_selector: _Matchers = ""
    """As of `server`; `wakeQuery` and the rules of `adapterRules` choose the cluster's series by themselves."""
    wake_query: str = ""
    """Expression for that Prometheus, by `namespace` and `service`, above 0 where requests wait for a model server that
    has no replica; empty for none. `sum by (namespace, service) (gateway_pending_requests)`, say."""
    adapter_rules: AdapterRulesFile = AdapterRulesFile()
    """Configuration of prometheus-adapter, whose rules are served from that Prometheus beside Tessera's own metrics."""
    args: tuple[str, ...] = ()
    """More options of `tessera metrics`."""
    node_selector: _Strings = {}
    """Only nodes with these labels."""
    affinity: dict[str, Any] = {}
    """As in a pod."""
    tolerations: _Objects = ()
    """As in a pod."""
    priority_class_name: str = "system-cluster-critical"
    """So that it is not preempted by pods that it scales."""
    resources: dict[str, Any] = _requests("50m", "128Mi", "1Gi")
    """Memory grows with the pods of model servers, and with all pods while places for more are counted: 10,000 pods of
    3 kB took 250 MB."""


class Certificate(_Record, frozen=True, kw_only=True):
    """The certificate of the webhook and the metrics APIs for the API server."""

    source: Literal["self-signed", "cert-manager"] = "self-signed"
    """`self-signed`: the servers create it, renew it in time and write it into the webhook. `cert-manager`: a
    Certificate requests it, and the server has no permission to change webhooks."""
    issuer: _Strings = {}
    """cert-manager's issuer, `{kind: ClusterIssuer, name: internal}`; empty for a self-signed one of our own."""


class AdmissionValues(_Record, frozen=True, kw_only=True):
    """What the API server rejects and changes; see docs/security.md."""

    policies: bool = True
    """Only Tessera writes assignments, an agent writes to its own node alone, and pods that request an amount of a
    GPU do not name their node."""
    routing: Literal["auto", "policy", "webhook", "none"] = "auto"
    """How pods that request an amount of a GPU get `schedulerName: tessera-scheduler`: by a MutatingAdmissionPolicy
    (Kubernetes 1.36 and later), by a webhook, or as their manifests say. `auto` chooses by the cluster's
    version."""
    certificate: Certificate = Certificate()


class Crds(_Record, frozen=True, kw_only=True):
    """The definitions of Tessera's kinds."""

    install: bool = True
    """Install and upgrade the definitions. They stay, with all objects, when the chart is uninstalled or this becomes
    `false`."""


class NetworkPolicies(_Record, frozen=True, kw_only=True):
    """Which traffic of the pods is allowed."""

    enabled: bool = True
    """Egress only to the API server, by its ports; ingress only from nodes (probes) and to the webhook."""
    model_ports: _Objects = (
        {"protocol": "UDP", "port": 53},
        {"protocol": "TCP", "port": 53},
        {"protocol": "TCP", "port": 443},
    )
    """Further egress ports of agents: DNS, and the services that models are fetched from."""
    prometheus_ports: _Objects = (
        {"protocol": "UDP", "port": 53},
        {"protocol": "TCP", "port": 53},
        {"protocol": "TCP", "port": 9090},
    )
    """Further egress ports of pods with the URL of a Prometheus: DNS, and Prometheus."""
    egress_ports: _Objects = ({"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443})
    """Ports of the API server, that of its Service and those behind it; the pods reach nothing else."""


class MetricsTls(_Record, frozen=True, kw_only=True):
    """TLS for them; plain HTTP without."""

    secret: str = ""
    """Secret of tessera-system with `tls.crt` and `tls.key`, as cert-manager writes it; read again when it changes."""
    client_authority: bool = False
    """Answer only clients with a certificate of the Secret's `ca.crt`. `tessera top` and `recommend`, which come
    through the API server, have none."""


class MetricsValues(_Record, frozen=True, kw_only=True):
    """Metrics for Prometheus, see docs/metrics.md."""

    enabled: bool = True
    """Answer `/metrics` at port 9400, named `metrics`, of each pod."""
    allow_from: _Objects = ()
    """Peers that may scrape the metrics, as in a NetworkPolicy: `[{namespaceSelector: {matchLabels:
    {kubernetes.io/metadata.name: monitoring}}}]`. Metrics name the pods that use GPUs. Empty: only
    the pod's own node."""
    tls: MetricsTls = MetricsTls()
    pod_monitor: bool = False
    """Install a PodMonitor, for the Prometheus operator."""
    pod_monitor_labels: _Strings = {}
    """Its labels, if the operator selects by them: `{release: kube-prometheus-stack}`."""
    pod_monitor_tls: dict[str, Any] = {}
    """Its `tlsConfig`, with which Prometheus verifies the certificate: `{serverName: tessera-metrics, ca: {secret:
    {name: tessera-metrics, key: ca.crt}}}`."""
    alert_rules: bool = False
    """Install the alert rules, and the rules of model servers, as PrometheusRules, for the Prometheus operator."""
    alert_rule_labels: _Strings = {}
    """Their labels, if the operator selects by them: `{release: kube-prometheus-stack}`."""
    runbook_url: _Url = ""
    """URL of docs/troubleshoot.md for your operators; annotation `runbook_url` of each alert links to its section. If
    empty, annotation `runbook` names page and section."""
    dashboards: bool = False
    """Install the dashboards as a ConfigMap with the label `grafana_dashboard: 1`, for the sidecar of Grafana."""


class Values(_Record, frozen=True, kw_only=True):
    """All values."""

    image: ImageValues = ImageValues()
    nvidia: Nvidia = Nvidia()
    agent: AgentValues = AgentValues()
    server: ServerValues = ServerValues()
    scheduler: Scheduler = Scheduler()
    controller: ControllerValues = ControllerValues()
    disks: DiskValues = DiskValues()
    metrics_api: MetricsApi = MetricsApi()
    admission: AdmissionValues = AdmissionValues()
    crds: Crds = Crds()
    network_policies: NetworkPolicies = NetworkPolicies()
    metrics: MetricsValues = MetricsValues()
    gpu_policy: dict[str, Any] = {}
    """Spec of a GPUPolicy named `default`; none without. Needs the definitions in the cluster already: install,
    then upgrade with it."""
    example_environments: bool = False
    """Create the Environments `pytorch`, `jupyter` and `cuda`, and an ImageWarmup `environments` that pulls the images
    of all Environments to all GPU nodes, 25 GB unpacked. Needs the definitions as `gpuPolicy` does."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that agent, server and controller log."""
    create_namespace: bool = False
    """Render tessera-system with its PodSecurity labels; Helm's own `--create-namespace` creates it without."""
    resource_quota: bool = True
    """Allow pods of the system's priority classes in tessera-system, which some clusters (GKE) forbid without a
    ResourceQuota."""


def read_values(given: Mapping[str, Plain], settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return all values: the defaults, with a file's over them, and over these `key=value` settings in order.

    Args:
        given: a values file.
        settings: `agent.gpuLabels=false`; the value is a truth value, a whole number or text, as Helm reads it.

    Raises:
        InvalidInput: an unknown value, or one of another type.

    """
    found = _merged(msgspec.to_builtins(Values()), given)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z]+(\.[A-Za-z]+)*", key):
            raise InvalidInput(
                "--set", found=shown(setting), expected="KEY=VALUE", hint="give --set agent.gpuLabels=false"
            )
        value: Any = msgspec.json.decode(text) if re.fullmatch(r"true|false|0|-?[1-9]\d*", text) else text
        for step in reversed(key.split(".")):
            value = {step: value}
        found = _merged(found, value)
    try:
        values = msgspec.convert(found, Values)
    except msgspec.ValidationError as error:
        raise refused_value(str(error), found, msgspec.json.schema(Values)) from error
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(values))
    return plain


def _merged(one: Any, other: Any) -> Any:
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return other
    return {**one, **{key: _merged(one.get(key), value) for key, value in other.items()}}
