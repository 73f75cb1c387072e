"""What the cluster has of a model server: its Deployment, its autoscaler and its pods, and which of several counts."""

from collections.abc import Iterable, Mapping

import msgspec

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
    problem: str
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
    problem: str
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
    uses_tessera_replicas: bool = False
    """Whether it scales by `tessera_replicas`, which is Tessera's decision."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's state of a model server."""

    deployment: ModelDeployment | None = None
    """The one that counts; None for none, and its pods are its replicas then."""
    bounds: HpaBounds | None = None
    """Of the autoscaler that targets the Deployment; None for none."""
    pods: int = 0
    ready: int = 0
    """Ready pods."""
    unschedulable: int = 0
    """Pods that are unschedulable."""
    started_s: tuple[float, ...] = ()
    """How long each of its pods took from being scheduled until it was first ready."""
    pending_requests: float | None = 0.0
    """Requests that wait in front of it, by an external source; they wake it. None if the source cannot be read."""
    room: int | None = None
    """How many more replicas fit; None if that was not counted."""
    room_problem: str = ""
    """Why that was to be counted and could not be; empty if it could, or was not to be."""

    @property
    def replicas(self) -> int:
        """Those desired by its Deployment."""
        return self.pods if self.deployment is None else self.deployment.replicas

    @property
    def scaled_to_zero_by_tessera(self) -> bool:
        """Whether an idle time is written: Tessera scales to zero then, whatever else the server is scaled by."""
        return self.deployment is not None and self.deployment.idle_s is not None

    @property
    def min_replicas(self) -> int:
        """0 if it may scale to zero, by its HorizontalPodAutoscaler or by Tessera."""
        if self.scaled_to_zero_by_tessera:
            return 0
        return 1 if self.bounds is None else self.bounds.min_replicas

    @property
    def uses_decision(self) -> bool:
        """Whether the HorizontalPodAutoscaler, or Tessera for scaling to zero, uses the decision."""
        return self.bounds is not None and (self.bounds.uses_tessera_replicas or self.scaled_to_zero_by_tessera)


def deployment_of(server: str, labeled: Iterable[ModelDeployment]) -> ModelDeployment:
    """Return the Deployment of a server among those with its label: its ModelServer's own, else the first by name."""
    return min(labeled, key=lambda each: (each.owner != server, each.name))


def bounds_of(autoscalers: Iterable[HpaBounds]) -> HpaBounds:
    """Return the bounds that count for one Deployment: of one that uses the decision, else of the first by name."""
    return min(autoscalers, key=lambda each: (not each.uses_tessera_replicas, each.name))


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
    pending_requests: float | None,
) -> ServerFacts:
    """Return the state of a server, by the objects that count.

    Args:
        deployment: its Deployment; None for none.
        bounds: of the autoscaler that targets the Deployment; None for none.
        pods: with its label.
        started_s: how long each took until it was first ready.
        pending_requests: that wait in front of it; None where they cannot be read.

    """
    pods = tuple(pods)
    return ServerFacts(
        deployment=deployment,
        bounds=bounds,
        pods=len(pods),
        ready=sum(pod.ready for pod in pods),
        unschedulable=sum(pod.unschedulable for pod in pods),
        started_s=tuple(started_s),
        pending_requests=pending_requests,
    )
