"""The spec of a ModelServer: engine, model, part of a GPU, replicas.

The records are those of the wire (`api/tessera/v1alpha1/modelservers`), which adds metadata, status and validation
beyond types; `render` makes Kubernetes objects of them.
"""

from typing import Annotated, Literal

import msgspec

from tessera.core.serving.autoscaling.scaletozero import IDLE_S
from tessera.core.workload.need import Isolation
from tessera.core.workload.objectnames import LabelName, ObjectName

__all__ = [
    "Autoscaling",
    "EnvironmentSource",
    "EnvironmentVariable",
    "Expose",
    "FieldSelector",
    "GpuRequest",
    "KeySelector",
    "ModelLocation",
    "ModelServer",
    "ModelServerSpec",
    "Monitor",
    "Nfs",
    "Probes",
    "ReplicaSpec",
    "ResourceSelector",
    "Resources",
    "ServerToleration",
]

MODELS = "/models"
"""Where pods find models: each in a folder of its name."""

_Path = Annotated[str, msgspec.Meta(pattern="^/", max_length=1024)]
_Quantity = Annotated[str, msgspec.Meta(pattern="^[0-9]+(\\.[0-9]+)?(m|[kMGTP]|[KMGTP]i)?$", max_length=32)]
_Label = Annotated[str, msgspec.Meta(max_length=317)]
_LabelValue = Annotated[str, msgspec.Meta(max_length=63)]
_RESOURCE = r"^nvidia\.com/(gpu|mig-[1-9][0-9]*g\.[1-9][0-9]*gb[a-z.-]*)(\.shared)?$"
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Argument = Annotated[str, msgspec.Meta(max_length=16_384)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]
_Labels = Annotated[dict[_Label, _LabelValue], msgspec.Meta(max_length=32)]


class _Record(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Part of a spec."""


class Nfs(_Record, frozen=True, kw_only=True):
    """A folder that an NFS server exports."""

    server: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    """Host name or address."""
    path: _Path
    """Folder on the server."""


class ModelLocation(_Record, frozen=True, kw_only=True):
    """Where the model is: exactly one of `cache`, `claim`, `nfs` and `hostPath`. Pods read it at /models/NAME."""

    cache: LabelName | None = None
    """A ModelCache: pods start on nodes that have the model, and wait for one otherwise."""
    claim: ObjectName | None = None
    """A PersistentVolumeClaim of the namespace."""
    nfs: Nfs | None = None
    """An NFS export. The Pod Security Standard `restricted` forbids it; use a claim there."""
    host_path: _Path | None = None
    """A folder of the node. The Pod Security Standards `baseline` and `restricted` forbid it."""
    name: LabelName | None = None
    """Name of the folder below /models, and by which clients ask vLLM for the model. Empty for the cache's name, or
    the server's."""


class GpuRequest(_Record, frozen=True, kw_only=True):
    """The part of a GPU that a replica gets: `memoryGiB`, which any sufficient part serves, or an exact `resource`."""

    memory_gib: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = msgspec.field(name="memoryGiB", default=None)
    """GiB of memory (tessera.dev/gpu-memory)."""
    compute: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    """Percent of a GPU's compute, with `memoryGiB`; empty for any."""
    isolation: Isolation | None = None
    """Weakest isolation from other pods on the GPU; empty for `driver` with `memoryGiB`, and what an exact name
    gives."""
    models: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], ...], msgspec.Meta(max_length=16)
    ] = ()
    """GPU models that may serve; empty for any."""
    resource: Annotated[str, msgspec.Meta(pattern=_RESOURCE, max_length=63)] | None = None
    """nvidia.com/gpu, nvidia.com/mig-1g.10gb and the like."""
    count: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    """Whole GPUs of a replica, with resource nvidia.com/gpu; vLLM splits the model over them (tensor parallel)."""


class ReplicaSpec(_Record, frozen=True, kw_only=True):
    """How many pods serve; with `max` above `min` an autoscaler chooses between the two."""

    min_replicas: _Count = msgspec.field(name="min", default=1)
    """Fewest replicas. 0 where metric is `tessera`: without a request for `autoscaling.idleSeconds` there is no
    replica, and requests are refused, until the server is woken."""
    max_replicas: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = msgspec.field(name="max", default=None)
    """Most replicas; empty for `min`, at least 1."""

    @property
    def most(self) -> int:
        """The most replicas."""
        return max(1, self.min_replicas) if self.max_replicas is None else self.max_replicas

    @property
    def scaled(self) -> bool:
        """Whether an autoscaler sets the number of replicas."""
        return self.most > self.min_replicas


class Autoscaling(_Record, frozen=True, kw_only=True):
    """What scales the replicas, where `replicas.max` is above `replicas.min`."""

    metric: Literal["tessera", "queue-time"] = "tessera"
    """`tessera`: the replicas that Tessera's policy requests, by requests in flight and their forecast. `queue-time`:
    the average time that requests wait in the engine's queue, against `queueTimeMillis`."""
    queue_time_millis: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 500
    """Target of `queue-time`, in milliseconds."""
    slots: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    """For metric `tessera`: most requests that a replica serves at once; fewer count where fewer are measured while
    requests wait. With vLLM empty for its `--max-num-seqs`; with Triton the instances of the model times their largest
    batch."""
    idle_seconds: Annotated[int, msgspec.Meta(ge=60, le=604_800)] = IDLE_S
    """With `replicas.min` 0: the last replica is removed when no request came for this long."""
    autoscaler: Literal["HorizontalPodAutoscaler", "KEDA"] = "HorizontalPodAutoscaler"
    """What scales. KEDA queries Prometheus itself, only for `queue-time`; the installation names the Prometheus."""


class Expose(_Record, frozen=True, kw_only=True):
    """The Service."""

    type: Literal["ClusterIP", "LoadBalancer", "Headless"] = "ClusterIP"
    """`Headless` has no address of its own: DNS names all ready pods, for clients that balance themselves, as gRPC's
    `round_robin`."""
    annotations: Annotated[dict[_Label, _Text], msgspec.Meta(max_length=32)] = {}
    """Of the Service: which configure a cloud's load balancer."""


class Monitor(_Record, frozen=True, kw_only=True):
    """The PodMonitor by which the Prometheus operator scrapes the pods; only where the cluster has that kind."""

    enabled: bool = True
    """Whether there is one."""
    labels: _Labels = {}
    """What Prometheus selects monitors by: `release: NAME` with kube-prometheus-stack."""


class Resources(_Record, frozen=True, kw_only=True):
    """What a replica gets besides the GPU."""

    cpu: _Quantity = "1"
    """Requested processor time."""
    memory: _Quantity = "8Gi"
    """Requested memory, and its limit; shared memory counts."""
    shared_memory: _Quantity = "1Gi"
    """Size of /dev/shm, where the replica has its GPU or MIG instance to itself."""


class Probes(_Record, frozen=True, kw_only=True):
    """How a replica is probed, at the engine's own paths. The startup probe lasts `startupSeconds`."""

    period_seconds: Annotated[int, msgspec.Meta(ge=1, le=300)] = 10
    """Seconds between probes."""
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=300)] = 5
    """An answer that takes longer is a failure."""
    readiness_failures: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    """Consecutive failures after which the replica gets no requests."""
    liveness_failures: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 6
    """Consecutive failures after which the replica is restarted."""


class KeySelector(_Record, frozen=True, kw_only=True):
    """A key of a ConfigMap or Secret of the namespace."""

    name: ObjectName
    key: Annotated[str, msgspec.Meta(pattern="^[-._a-zA-Z0-9]+$", max_length=253)]
    optional: bool | None = None
    """Whether the pod starts without it."""


class FieldSelector(_Record, frozen=True, kw_only=True):
    """A field of the pod."""

    api_version: Annotated[str, msgspec.Meta(max_length=63)] | None = None
    field_path: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """`metadata.name`, `status.podIP`, ..."""


class ResourceSelector(_Record, frozen=True, kw_only=True):
    """A request or limit of the container."""

    container_name: LabelName | None = None
    resource: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    """`limits.memory`, `requests.cpu`, ..."""
    divisor: _Quantity | None = None
    """Unit of the value."""


class EnvironmentSource(_Record, frozen=True, kw_only=True):
    """Where a variable's value is; one of these."""

    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceSelector | None = None


class EnvironmentVariable(_Record, frozen=True, kw_only=True):
    """A variable, with a value or a source, as in a container."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    value: _Text | None = None
    value_from: EnvironmentSource | None = None
    """As in a container: `{secretKeyRef: {name: token, key: token}}`."""


class ServerToleration(_Record, frozen=True, kw_only=True):
    """A toleration, as in a pod."""

    key: _Label | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: _LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] | None = None


class ModelServerSpec(_Record, frozen=True, kw_only=True):
    """The spec of a model server."""

    engine: Literal["triton", "vllm"]
    """`triton` serves the model repository at /models/NAME; `vllm` the model there by OpenAI's API."""
    image: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """Image of the engine, as in a container."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], msgspec.Meta(max_length=8)] = ()
    """Secrets of the namespace for the registry."""
    model: ModelLocation
    gpu: GpuRequest
    replicas: ReplicaSpec = ReplicaSpec()
    autoscaling: Autoscaling = Autoscaling()
    expose: Expose = Expose()
    monitor: Monitor = Monitor()
    args: Annotated[tuple[_Argument, ...], msgspec.Meta(max_length=128)] = ()
    """More options of the engine, `--max-model-len=8192`; they replace those that Tessera would write."""
    allow_unknown_args: bool = False
    """Accept options that the engine's version known to Tessera does not have."""
    command: Annotated[tuple[_Argument, ...], msgspec.Meta(max_length=32)] = ()
    """In place of the engine's program; the options follow it."""
    env: Annotated[tuple[EnvironmentVariable, ...], msgspec.Meta(max_length=64)] = ()
    """More environment variables."""
    resources: Resources = Resources()
    startup_seconds: Annotated[int, msgspec.Meta(ge=10, le=86_400)] = 1800
    """How long a replica may take to load the model before it is restarted."""
    probes: Probes = Probes()
    termination_grace_period_seconds: Annotated[int, msgspec.Meta(ge=30, le=86_400)] = 120
    """How long a terminating replica may take to finish its requests."""
    run_as_user: Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)] = 1000
    """User of the container; 0, root, is refused under the Pod Security Standard `restricted`."""
    node_selector: _Labels = {}
    """Only nodes with these labels."""
    tolerations: Annotated[tuple[ServerToleration, ...], msgspec.Meta(max_length=32)] = ()
    """As in a pod."""


class ModelServer(msgspec.Struct, frozen=True, kw_only=True):
    """A model server by its name."""

    name: str
    namespace: str
    """Empty where a manifest leaves it to `kubectl`."""
    uid: str = ""
    """UID of the ModelServer in the cluster, which then owns the rendered objects; empty outside of a cluster."""
    woken_s: float | None = None
    """When it was last woken, since 1970; None for never."""
    spec: ModelServerSpec

    @property
    def min_replicas(self) -> int:
        """The fewest replicas."""
        return self.spec.replicas.min_replicas

    @property
    def max_replicas(self) -> int:
        """The most replicas."""
        return self.spec.replicas.most

    @property
    def scaled(self) -> bool:
        """Whether an autoscaler sets the number of replicas."""
        return self.spec.replicas.scaled

    @property
    def scales_to_zero(self) -> bool:
        """Whether it scales to zero while it is idle."""
        return self.min_replicas == 0

    @property
    def isolation(self) -> Isolation | None:
        """The isolation that the pods request; None for the default of its request's form.

        A device requested by its exact name is exclusive, unless the name says that it is shared: an administrator
        may offer shared devices under the names of whole ones.
        """
        gpu = self.spec.gpu
        if gpu.isolation is not None or gpu.resource is None or gpu.resource.endswith(".shared"):
            return gpu.isolation
        return Isolation.HARDWARE

    @property
    def model(self) -> str:
        """Name of the model, and of its folder below /models."""
        return self.spec.model.name or self.spec.model.cache or self.name
