"""What the status of a model server says of what was observed."""

import pytest

from tessera.core.serving.serverstatus import (
    DeploymentProgress,
    ServerProgress,
    StartedReplicas,
    StatusFinding,
    desired_replicas,
    missing_rights,
    started_replicas,
    status_findings,
)

ROLE = "--clusterrole=tessera-model-servers"
ACCOUNTS = {
    'User "system:serviceaccount:gpu:control" cannot list deployments': "gpu:control",
    "may not": "tessera-system:tessera-controller",
}


@pytest.mark.parametrize("refusal", ACCOUNTS)
def test_missing_rights_are_reported_with_the_command_that_grants_them(refusal: str) -> None:
    message = missing_rights("ml", refusal)
    want = f"`kubectl create rolebinding tessera-model-servers -n ml {ROLE} --serviceaccount={ACCOUNTS[refusal]}`"
    assert want in message
    assert message.endswith(refusal)


def progress(
    desired: int, replicas: int | None = None, *, ready: int | None = None, updated: int | None = None
) -> DeploymentProgress:
    """Return how far a Deployment is: what is not given is as desired."""
    there = desired if replicas is None else replicas
    return DeploymentProgress(
        desired=desired,
        replicas=there,
        ready=desired if ready is None else ready,
        updated=there if updated is None else updated,
        generation=2,
        observed_generation=2,
    )


def ready_of(observed: ServerProgress) -> StatusFinding:
    return next(each for each in status_findings(observed) if each.type == "Ready")


REJECTED = "violates PodSecurity"
HINT = "`tessera explain pod` shows why one is pending, `kubectl describe pod` why one does not start"
BY_HAND = (
    "its Deployment was scaled to zero by hand, and its autoscaler does not change that: "
    "`kubectl scale deployment NAME --replicas=1` starts one"
)
STATES = {
    "all serve": (ServerProgress(deployment=progress(2)), (True, True, "Serving"), "2 of 2 replicas serve"),
    "one starts": (
        ServerProgress(deployment=progress(2, ready=1)),
        (True, False, "Starting"),
        "1 of 2 replicas serve; `tessera explain pod` shows why one is pending",
    ),
    "a rollout": (
        ServerProgress(deployment=progress(2, 3, updated=1)),
        (True, False, "RollingOut"),
        f"1 of 2 replicas are of the present spec, 2 serve; {HINT}",
    ),
    "the next of the first starts later": (
        ServerProgress(deployment=progress(1), min_replicas=3),
        (True, False, "Starting"),
        "1 of 3 replicas serve; `tessera explain pod` shows why one is pending",
    ),
    "idle": (
        ServerProgress(deployment=progress(0), scales_to_zero=True),
        (True, True, "ScaledToZero"),
        "idle, so no replica serves and requests are refused; `tessera wake` starts one",
    ),
    "the first after it was idle": (
        ServerProgress(deployment=progress(1, ready=0), scales_to_zero=True),
        (True, False, "Starting"),
        "0 of 1 replicas serve; `tessera explain pod` shows why one is pending",
    ),
    "somebody scaled it to zero": (
        ServerProgress(deployment=progress(0)),
        (True, False, "ScaledToZeroByHand"),
        BY_HAND,
    ),
    "an object is another's": (
        ServerProgress(deployment=progress(1), problems=("Service a is another's",)),
        (False, True, "Serving"),
        "1 of 1 replicas serve",
    ),
    "its Deployment is another's": (
        ServerProgress(scales_to_zero=True, problems=("it is another's",), unserved="it is another's"),
        (False, False, "DeploymentNotApplied"),
        "0 of 0 replicas serve, not as specified: it is another's",
    ),
    "replicas of a former spec": (
        ServerProgress(deployment=progress(1), problems=("timed out",), unserved="timed out"),
        (False, False, "DeploymentNotApplied"),
        "1 of 1 replicas serve, not as specified: timed out",
    ),
    "no Deployment yet": (
        ServerProgress(),
        (True, False, "DeploymentNotApplied"),
        "0 of 0 replicas serve, not as specified: it has no Deployment yet",
    ),
    "pods that are rejected": (
        ServerProgress(
            deployment=DeploymentProgress(desired=3, replicas=2, ready=1, updated=2, failures=(REJECTED, "timed out")),
            problems=("first",),
        ),
        (False, False, "DeploymentNotApplied"),
        f"1 of 3 replicas serve, not as specified: Deployment: {REJECTED}; Deployment: timed out",
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_a_status_says_what_was_found(case: str) -> None:
    observed, (applied, ready, reason), message = STATES[case]
    findings = status_findings(observed)
    assert [(each.type, each.status == "True") for each in findings] == [
        ("Accepted", True),
        ("Applied", applied),
        ("Ready", ready),
    ]
    assert (findings[2].reason, findings[2].message) == (reason, message)
    assert findings[1].message.startswith("; ".join(observed.problems))


def test_why_objects_are_not_as_desired_or_what_was_skipped() -> None:
    failing = DeploymentProgress(desired=1, failures=(REJECTED,))
    messages = [
        status_findings(each)[1].message
        for each in (
            ServerProgress(deployment=failing, problems=("first",), notes=("no PodMonitor",)),
            ServerProgress(deployment=progress(1), notes=("no PodMonitor",)),
            ServerProgress(deployment=progress(1)),
        )
    ]
    assert messages == [f"first; Deployment: {REJECTED}", "no PodMonitor", "all objects are as desired"]


def test_how_many_replicas_are_desired_in_the_end() -> None:
    servers = (
        ServerProgress(min_replicas=3),
        ServerProgress(deployment=progress(0), min_replicas=3),
        ServerProgress(deployment=progress(1), min_replicas=3),
        ServerProgress(deployment=progress(5), min_replicas=3),
    )
    assert [desired_replicas(each) for each in servers] == [0, 0, 3, 5]


ROLLING = {
    "new": (DeploymentProgress(desired=2, generation=4), 0),
    "all are ready": (DeploymentProgress(desired=2, replicas=2, ready=2, updated=2, generation=4), 2),
    "a rollout": (DeploymentProgress(desired=2, replicas=3, ready=2, updated=1), 0),
    "a change that the Deployment controller has not observed": (
        DeploymentProgress(desired=2, replicas=2, ready=2, updated=2, generation=4, observed_generation=3),
        0,
    ),
}


@pytest.mark.parametrize("case", ROLLING)
def test_in_a_rollout_no_replica_counts_as_ready(case: str) -> None:
    deployment, ready = ROLLING[case]
    assert started_replicas(deployment) == StartedReplicas(2, ready)
    assert started_replicas(None) == StartedReplicas(0, 0)


ROLLOUTS = {
    "done": (progress(2), "2 of 2 replicas serve"),
    "not observed by the Deployment controller": (
        DeploymentProgress(desired=2, replicas=2, ready=2, updated=2, generation=3, observed_generation=2),
        "0 of 2 replicas are of the present spec, 2 serve",
    ),
    "of images that cannot be pulled": (progress(2, 3, updated=1), "1 of 2 replicas are of the present spec, 2 serve"),
    "whose former pod ends": (progress(2, 3, updated=2), "2 of 2 replicas are of the present spec, 2 serve"),
    "whose last pod starts": (progress(2, ready=1), "1 of 2 replicas serve"),
}


@pytest.mark.parametrize("case", ROLLOUTS)
def test_replicas_of_a_former_spec_are_not_ready_ones(case: str) -> None:
    deployment, message = ROLLOUTS[case]
    ready = ready_of(ServerProgress(deployment=deployment))
    assert (ready.status == "True", ready.message.partition(";")[0]) == (case == "done", message)
    assert (ready.reason == "RollingOut") == ("of the present spec" in message)


def test_at_zero_nothing_rolls_out() -> None:
    behind = DeploymentProgress(desired=0, generation=3, observed_generation=2)
    assert ready_of(ServerProgress(deployment=behind, scales_to_zero=True)).reason == "ScaledToZero"
