"""What the cluster has of a model server: its Deployment, its autoscaler and its pods, and which of several counts."""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.serving.autoscaling.scaletozero import IDLE_S

__all__ = [
    "HpaBounds",
    "ModelDeployment",
    "ModelPod",
    "ServerFacts",
    "bounds_of",
    "deployment_of",
    "server_facts",
    "start_times",
]


class ModelPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a model server."""

    url: str
    """URL of its metrics; empty if unknown."""
    trouble: str
    """Why it is not."""
    running: bool
    ready: bool
    """Whether it is ready; not if it is terminating."""
    unschedulable: bool
    """Whether the scheduler found no node for it."""
    started_s: float
    """Start of the serving container."""
    cold_start_s: float | None
    """From being scheduled until it last became ready, if it is ready and never restarted."""


class ModelDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """A Deployment with the label of a model server."""

    name: str
    replicas: int
    slots: int | None
    revision: str = ""
    """Changes with the pods' template; empty before the Deployment controller has written it."""
    rolling: bool = False
    """Whether pods of an earlier template are there, or the Deployment controller has not observed the present one."""
    cold_start_s: float | None
    one_by_one: bool = False
    """Whether its replicas start one by one."""
    idle_s: float | None = None
    """It may scale to zero after this long without a request; None if it is not set."""
    woken_s: float | None = None
    """When it was last woken; None for never."""
    trouble: str
    """Invalid annotations."""
    owner: str = ""
    """Name of the ModelServer that owns it; empty for none."""
    owner_uid: str = ""


class HpaBounds(msgspec.Struct, frozen=True, kw_only=True):
    """A HorizontalPodAutoscaler's bounds for a Deployment."""

    name: str
    deployment: str
    min_replicas: int
    max_replicas: int
    decided: bool = False
    """Whether it uses Tessera's decision."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's state of a model server."""

    deployment: str = ""
    """Name of its Deployment; empty without one."""
    replicas: int
    """Desired by its Deployment."""
    ready: int = 0
    """Ready pods."""
    min_replicas: int = 1
    """0 if it may scale to zero, by its HorizontalPodAutoscaler or by Tessera."""
    max_replicas: int | None = None
    """Of its HorizontalPodAutoscaler; None if it has none."""
    decided: bool = False
    """Whether the HorizontalPodAutoscaler, or Tessera for scaling to zero, uses the decision."""
    one_by_one: bool = False
    """Whether its replicas start one by one."""
    idle_s: float = IDLE_S
    """How long it must be without requests before it scales to zero."""
    woken_s: float | None = None
    """When a wake-up was last requested; None for never."""
    pending_requests: float | None = 0.0
    """Requests that wait in front of it, by an external source; they wake it. None if the source cannot be read."""
    slots: int | None = None
    """Most concurrent requests of a replica; None where unknown."""
    revision: str = ""
    """Of its pods' template."""
    rolling: bool = False
    """Whether a rollout replaces its pods, so that some may be of an earlier template."""
    unschedulable: int = 0
    """Pods that are unschedulable."""
    room: int | None = None
    """How many more replicas fit; None if that was not counted."""
    room_unknown: bool = False
    """Whether that was to be counted and could not be: the cluster was not read, or others took the time."""
    cold_start_s: float | None = None
    """From its Deployment's annotation; None to use the measured time."""
    trouble: str = ""
    """Annotations that cannot be parsed; empty for none."""
    started_s: tuple[float, ...] = ()
    """How long each of its pods took from being scheduled until it was first ready."""


def deployment_of(server: str, labeled: Iterable[ModelDeployment]) -> ModelDeployment:
    """Return the Deployment of a server among those with its label: its ModelServer's own, else the first by name."""
    return min(labeled, key=lambda each: (each.owner != server, each.name))


def bounds_of(autoscalers: Iterable[HpaBounds]) -> HpaBounds:
    """Return the bounds that count for one Deployment: of one that uses the decision, else of the first by name."""
    return min(autoscalers, key=lambda each: (not each.decided, each.name))


def start_times(former: Mapping[str, float], pods: Mapping[str, ModelPod]) -> dict[str, float]:
    """Return how long each of the pods took until it was first ready, where that is known.

    A pod that is unready for a moment is ready again much later than it started, so the first time remains.

    Args:
        former: the result of the former pass.
        pods: those of now, by name.

    """
    times = {name: former.get(name, pod.cold_start_s) for name, pod in pods.items()}
    return {name: seconds for name, seconds in times.items() if seconds is not None and seconds > 0}


def server_facts(
    deployment: ModelDeployment | None,
    bounds: HpaBounds | None,
    pods: Iterable[ModelPod],
    *,
    started_s: Iterable[float],
    pending: float | None,
) -> ServerFacts:
    """Return the state of a server, by the objects that count.

    Args:
        deployment: its Deployment; None for none, and its pods are its replicas then.
        bounds: of the autoscaler that targets the Deployment; None for none.
        pods: with its label.
        started_s: how long each took until it was first ready.
        pending: requests that wait in front of it; None where they cannot be read.

    """
    pods = tuple(pods)
    ready, unschedulable = sum(pod.ready for pod in pods), sum(pod.unschedulable for pod in pods)
    if deployment is None:
        return ServerFacts(replicas=len(pods), ready=ready, unschedulable=unschedulable)
    # Tessera scales to zero where an idle time is written, whatever else the server is scaled by.
    by_tessera = deployment.idle_s is not None
    min_replicas = 1 if bounds is None else bounds.min_replicas
    return ServerFacts(
        deployment=deployment.name,
        replicas=deployment.replicas,
        ready=ready,
        min_replicas=0 if by_tessera else min_replicas,
        max_replicas=None if bounds is None else bounds.max_replicas,
        decided=bounds is not None and (bounds.decided or by_tessera),
        one_by_one=deployment.one_by_one,
        idle_s=IDLE_S if deployment.idle_s is None else deployment.idle_s,
        woken_s=deployment.woken_s,
        pending_requests=pending,
        slots=deployment.slots,
        revision=deployment.revision,
        rolling=deployment.rolling,
        unschedulable=unschedulable,
        cold_start_s=deployment.cold_start_s,
        trouble=deployment.trouble,
        started_s=tuple(started_s),
    )
