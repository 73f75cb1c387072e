"""What the status of a model server says: whether it is as desired, and whether it serves.

The controller observes; `api/tessera/v1alpha1/modelservers` writes it as conditions of the object.
"""

import re
from typing import Final, Literal

import msgspec

__all__ = [
    "DeploymentProgress",
    "ServerProgress",
    "StartedReplicas",
    "StatusFinding",
    "desired_replicas",
    "missing_rights",
    "started_replicas",
    "status_findings",
]

_ACCOUNT = re.compile(r"system:serviceaccount:([-a-z0-9]{1,63}):([-a-z0-9.]{1,253})")
"""The user in the API server's message about a forbidden request."""
_ROLE: Final = "tessera-model-servers"
"""The chart's ClusterRole and, by convention, the RoleBindings of it."""


class DeploymentProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a Deployment is, by its controller."""

    desired: int
    """Replicas of its spec."""
    replicas: int = 0
    """Pods that there are."""
    ready: int = 0
    updated: int = 0
    """Pods of the present template."""
    generation: int = 0
    observed_generation: int | None = None
    """The one that the Deployment controller has observed; None before it has observed any."""
    failures: tuple[str, ...] = ()
    """Why pods are not created, by admission, Pod Security or a quota; and why a rollout does not complete."""

    @property
    def rolling(self) -> bool:
        """Whether pods of an earlier template are there, or the controller has not observed this generation."""
        observed = self.observed_generation
        return (observed is not None and observed < self.generation) or self.updated < self.replicas


class StartedReplicas(msgspec.Struct, frozen=True):
    """How far the replicas of a Deployment are."""

    desired: int
    ready: int

    def limit(self, replicas: int) -> int:
        """Return how many of some replicas to request, if they start one by one: one more than are ready."""
        return min(replicas, max(self.desired, self.ready + 1))


class ServerProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of a valid server in the cluster."""

    deployment: DeploymentProgress | None = None
    """Its Deployment, with the generation that was written last, which may be later than the one observed."""
    scales_to_zero: bool = False
    """Whether it may scale to zero."""
    min_replicas: int = 0
    """Fewest of its spec; of those that start one by one fewer are desired at first."""
    problems: tuple[str, ...] = ()
    """Why objects are not as desired, each in a sentence without full stop."""
    unserved: str = ""
    """The one of the problems that is of the Deployment, so that ready replicas, if any, are not those of the spec."""
    notes: tuple[str, ...] = ()
    """What was skipped, and why."""


class StatusFinding(msgspec.Struct, frozen=True):
    """One condition."""

    type: str
    status: Literal["True", "False"]
    reason: str
    message: str


def started_replicas(deployment: DeploymentProgress | None) -> StartedReplicas:
    """Return how far the replicas of a Deployment are; None stands for no Deployment.

    A rollout starts pods of its own, and those of before may still be ready: none counts as ready then.
    """
    if deployment is None:
        return StartedReplicas(0, 0)
    return StartedReplicas(deployment.desired, 0 if deployment.rolling else deployment.ready)


def desired_replicas(observed: ServerProgress) -> int:
    """Return the replicas that a server is to have in the end; 0 while it is scaled to zero."""
    if observed.deployment is None or not observed.deployment.desired:
        return 0
    return max(observed.deployment.desired, observed.min_replicas)


def status_findings(observed: ServerProgress) -> tuple[StatusFinding, ...]:
    """Return the conditions of a valid server: `Accepted`, `Applied` and `Ready`."""
    failures = () if observed.deployment is None else observed.deployment.failures
    problems = (*observed.problems, *(f"Deployment: {each}" for each in failures))
    message = "; ".join(problems or observed.notes or ("all objects are as desired",))
    return (
        StatusFinding("Accepted", "True", "Valid", "the spec is valid"),
        StatusFinding("Applied", "False" if problems else "True", "Failed" if problems else "Done", message),
        _is_ready(observed),
    )


def _is_ready(observed: ServerProgress) -> StatusFinding:
    deployment, desired = observed.deployment or DeploymentProgress(desired=0), desired_replicas(observed)
    serving = f"{deployment.ready} of {desired} replicas serve"
    unserved = observed.unserved or "; ".join(f"Deployment: {each}" for each in deployment.failures)
    if unserved or observed.deployment is None:
        cause = unserved or "it has no Deployment yet"
        return StatusFinding("Ready", "False", "DeploymentNotApplied", f"{serving}, not as specified: {cause}")
    if deployment.desired and deployment.rolling:
        unseen = (deployment.observed_generation or 0) < deployment.generation
        updated = 0 if unseen else min(deployment.updated, desired)
        rolled = f"{updated} of {desired} replicas are of the present spec, {deployment.ready} serve"
        hint = "`tessera explain pod` shows why one is pending, `kubectl describe pod` why one does not start"
        return StatusFinding("Ready", "False", "RollingOut", f"{rolled}; {hint}")
    if not desired and observed.scales_to_zero:
        idle = "idle, so no replica serves and requests are refused; `tessera wake` starts one"
        return StatusFinding("Ready", "True", "ScaledToZero", idle)
    if not desired:
        cause = "its Deployment was scaled to zero by hand, and its autoscaler does not change that"
        hint = "`kubectl scale deployment NAME --replicas=1` starts one"
        return StatusFinding("Ready", "False", "ScaledToZeroByHand", f"{cause}: {hint}")
    if deployment.ready < desired:
        hint = "`tessera explain pod` shows why one is pending"
        return StatusFinding("Ready", "False", "Starting", f"{serving}; {hint}")
    return StatusFinding("Ready", "True", "Serving", serving)


def missing_rights(namespace: str, refusal: str) -> str:
    """Return which RoleBinding a namespace lacks and how to create it.

    Args:
        namespace: where the controller lacks permissions.
        refusal: the API server's message, with the controller's account.

    """
    found = _ACCOUNT.search(refusal)
    account = ":".join(found.groups()) if found else "tessera-system:tessera-controller"
    command = f"kubectl create rolebinding {_ROLE} -n {namespace} --clusterrole={_ROLE} --serviceaccount={account}"
    return (
        f"namespace {namespace} has no RoleBinding of ClusterRole {_ROLE} for {account}, or the role lacks a right: "
        f"`{command}` creates it; {refusal}"
    )
