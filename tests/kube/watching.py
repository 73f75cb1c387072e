"""What happens to the pods of a churn, watched from outside: what is given twice, who is harmed, who was refused."""

import contextlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from judges.deviceuse import Container, Fault, doubled, judged, uses_of
from kube.churn import CONTAINER, DEFAULT, MAIN, Act
from kube.observing import Api, Living, NoAnswerError, checkpoint, containers_of, living, used_node
from testbed.cluster import Cluster

__all__ = ["START_S", "Book", "Found", "Seen", "Watcher"]

OF_ACT = re.compile(r"(.*-[0-9]+)(?:-[a-z0-9]{5})?")
LOOK_S = 0.4
START_S = 60.0
"""How long a pod may be bound without having started, ended or been deleted, while nothing it needs is broken."""
_UNKNOWN_EXIT = 255
_UNSTARTED_EXITS, _STARTING_S = {_UNKNOWN_EXIT, 128}, 2.0
"""What is said of a container of which nothing is known, as when it ended while containerd was down, and of one that
could not be started. Source: containerd `internal/cri/server/{helpers,restart,container_start}.go`."""
_NEVER = "1970-01-01T00:00:00Z"
"""When a container started that did not. A kubelet that is killed between creating and starting it makes another one,
whatever the pod's restart policy. Source: kubelet `container/helpers.go:ShouldContainerBeRestarted`."""
EVENTS = "/api/v1/namespaces/default/events"
PODS = "/api/v1/namespaces/default/pods?labelSelector=made-by%3Dtest"
NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+(\.[0-9]+)?")


class Book:
    """What was made, and what was asked to go."""

    def __init__(self) -> None:
        self.acts: dict[str, Act] = {}
        self.let_go: set[str] = set()
        """Acts whose pods were asked to go, or may be gone since."""

    def act_of(self, pod_name: str) -> Act | None:
        match = OF_ACT.fullmatch(pod_name)
        return self.acts.get(pod_name) or (self.acts.get(match[1]) if match else None)


class Found(NamedTuple):
    """A fault, and how long it lasted."""

    fault: Fault
    first_s: float
    last_s: float
    times: int


class Seen:
    """What is known of a pod."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = ""
        self.scheduler = ""
        self.ran_since = 0.0
        self.lived: tuple[int, int] | None = None
        """Numbers of the looks at which its container's processes were seen first and last."""
        self.ended = False
        self.judged = False
        self.bound_since = 0.0
        """When it was first seen with a node."""
        self.started_after_s: float | None = None
        """For how long it was bound until each of its containers had begun, while nothing it needs was broken."""
        self.overdue = False
        """Whether it was bound for START_S and had not started."""

    @property
    def starting(self) -> bool:
        """Whether it may yet start: it is bound, and neither has started nor is overdue."""
        return bool(self.bound_since) and self.started_after_s is None and not self.ended and not self.overdue

    def follow_start(self, pod: Mapping[str, Any], now_s: float, away_s: Callable[[str, float], float]) -> str:
        """Take note of whether it has started; return what is wrong once it should have and has not.

        Args:
            pod: the object.
            now_s: the monotonic clock.
            away_s: gives for how long what a node's pods need to start has been broken since a time.

        """
        node, status = pod["spec"].get("nodeName"), pod.get("status") or {}
        if not node or self.started_after_s is not None:
            return ""
        self.bound_since = self.bound_since or now_s
        bound_s = now_s - self.bound_since - away_s(node, self.bound_since)
        states = status.get("containerStatuses") or ()
        # One that ended without having begun, as when containerd is killed, is not to start any more.
        settled = len(states) == len(pod["spec"]["containers"]) and all(
            _began(each) or _ends([each]) for each in states
        )
        if settled and any(map(_began, states)):
            self.started_after_s = bound_s
        if not self.starting or bound_s < START_S or "deletionTimestamp" in pod["metadata"]:
            return ""
        self.overdue = True
        waits = "; ".join(f"{each['name']} {_waiting(each)}" for each in (*_initial(status), *states))
        words = " ".join(filter(None, (self.phase, status.get("reason"), status.get("message"))))
        return f"{self.name} on {node}: {words} for {bound_s:.0f} s; {waits}"


class Watcher:
    """Looks at containers, drivers and checkpoints as often as it can, and at the pods of the API.

    Args:
        cluster: one that runs.
        book: what is made.
        log: receives the findings.
        away_s: gives for how long what a node's pods need to start has been broken since a time.

    """

    def __init__(
        self, cluster: Cluster, book: Book, log: Callable[[str], None], away_s: Callable[[str, float], float]
    ) -> None:
        self._cluster, self._book, self._log, self._away_s = cluster, book, log, away_s
        self._api = Api(cluster, answer_s=2.5)  # containers are looked at again after it
        self._began = time.monotonic()
        self._looks = [self._began]
        """When containers were looked at."""
        self._silent: list[tuple[float, float]] = []
        """When the API server did not answer: after a kill it may take a minute to come back."""
        self.pods: dict[str, Seen] = {}
        """By UID, also those that are gone."""
        self.present: dict[str, dict[str, Any]] = {}
        self.found: dict[tuple[str, str, tuple[str, ...]], Found] = {}
        self.harmed: list[str] = []
        self.never_started: list[str] = []
        """Pods that were bound for START_S and had not started, ended or been deleted."""
        self.refused: Counter[str] = Counter()
        self.unreported: list[str] = []
        """Pods that ended by themselves, and that a kubelet which was started again refused before it knew."""
        self.denied_again: list[str] = []
        self.surplus: list[str] = []
        self.unstarted: list[str] = []
        """Pods whose container was about to start when containerd was killed, which cleans such up."""
        self.reasons: Counter[str] = Counter()
        """Of pods that were refused and whose asking was honest."""
        self.checks = 0
        self.containers = 0
        self.served: set[str] = set()
        """Names of the pods in which a device was seen."""

    def run(self, ends: threading.Event) -> None:
        """Look until it is to end."""
        with contextlib.closing(self._api):
            while not ends.is_set():
                self.look()
                ends.wait(LOOK_S)

    def look(self) -> None:
        """Look once at everything."""
        try:
            self._follow(self._api.list(PODS))
        except NoAnswerError:  # what is given twice is so without the API server too
            self._silent.append((self._looks[-1], time.monotonic()))
        self._looks.append(time.monotonic())
        before = living(self._cluster.cgroup)
        nodes = [(used_node(node), checkpoint(node)) for node in self._cluster.nodes]
        after = living(self._cluster.cgroup)
        # What lives before and after lived while the driver was read.
        lasting = {key: each for key, each in before.items() if key in after}
        containers = list(containers_of(lasting, self._known))
        self.checks += 1
        self.containers += len(containers)
        for node, entries in nodes:
            there = [each for each in containers if each.node == node.name]
            self.served |= {each.pod for each in there if uses_of(each, node)}
            self._note([*judged(node, there), *doubled(entries)])

    def _known(self, found: Living, environment: Mapping[str, str]) -> Container:
        name, container = environment["HOSTNAME"], environment.get(CONTAINER, "")
        act = self._book.act_of(name)
        pod = self.pods.get(found.pod_uid)
        if pod is not None and container == MAIN:
            number = len(self._looks) - 1
            pod.lived = pod.lived[0] if pod.lived else number, number
        routed = pod is not None and pod.scheduler != DEFAULT
        return Container(
            node=found.node,
            pod=name,
            id=found.id,
            name=container,
            asked_mib=act.kind.asked_mib(container) if act else None,
            asked_devices=act.kind.asked_devices(container) if act else 0,
            forged=act is not None and (act.kind.forged or (act.kind.misrouted and not routed)),
            deleted=pod is not None and found.pod_uid not in self.present,
        )

    def _note(self, faults: Iterable[Fault]) -> None:
        now = time.monotonic() - self._began
        for each in faults:
            known = self.found.get(each.key)
            if known is None:
                self._log(f"FAULT {each.kind}: {each.where} {each.who} {each.text}")
            first, times = (known.first_s, known.times) if known else (now, 0)
            self.found[each.key] = Found(each, first, now, times + 1)

    # Pods of the API

    def _follow(self, pods: Iterable[dict[str, Any]]) -> None:
        present = {each["metadata"]["uid"]: each for each in pods}
        for uid, pod in present.items():
            known = self.pods.setdefault(uid, Seen(pod["metadata"]["name"]))
            self._judge(known, pod)
        for uid in self.present.keys() - present.keys():
            self._gone(self.pods[uid])
        self.present = present

    def _judge(self, known: Seen, pod: dict[str, Any]) -> None:
        status = pod.get("status") or {}
        known.phase, known.scheduler = status.get("phase", ""), pod["spec"].get("schedulerName", "")
        states = status.get("containerStatuses") or ()
        if not known.ran_since and any(_began(each) for each in states):
            known.ran_since = time.monotonic()
        known.ended = known.phase in {"Succeeded", "Failed"}
        overdue = known.follow_start(pod, time.monotonic(), self._broken_s)
        if overdue and not self._may_go(known):
            self.never_started.append(overdue)
            self._log(f"NEVER STARTED {overdue}")
            self._log_events(known)
        restarts = sum(each["restartCount"] for each in states)
        runs_on = any("running" in each["state"] for each in states)
        broken = runs_on and any(each.get("exitCode") for each in _ends(states))
        if known.judged or not (known.phase == "Failed" or restarts or broken):
            return
        known.judged = True
        words = f"{known.phase}, {restarts} restarts, {status.get('reason', '')} {status.get('message', '')}"
        if self._may_go(known):
            return
        ends = _ends(states)
        exits = {each.get("exitCode") for each in ends}
        began = filter(_started, _ends(_initial(status)))
        if any(each.get("exitCode") not in {0, *_UNSTARTED_EXITS} for each in began):
            self._harm(known, f"{words} {json.dumps(_initial(status))}")
        elif not known.ran_since:
            self._count_refusal(known, status)
        elif self._is_denied_again(known, status):
            self.denied_again.append(f"{known.name}: {words}")
        elif self._may_be_done(known) and exits <= {0, _UNKNOWN_EXIT}:
            self.unreported.append(f"{known.name}: {words}")
        elif not any(map(_started, ends)) or (exits <= _UNSTARTED_EXITS and self._lived_s(known)[0] < _STARTING_S):
            self.unstarted.append(f"{known.name}: {words}")
        else:
            self._harm(known, f"{words} {json.dumps(states)}")

    def _broken_s(self, node: str, since_s: float) -> float:
        """Return for how long what a node's pods need to start has been broken, or has not answered, since a time."""
        silent_s = sum(max(0.0, to_s - max(from_s, since_s)) for from_s, to_s in self._silent)
        return silent_s + self._away_s(node, since_s)

    def _is_denied_again(self, known: Seen, status: dict[str, Any]) -> bool:
        """Return whether a restarted kubelet denied a pod for want of devices for a container that did not run.

        One that had not started yet, or an init container that had ended (docs/kubelet-races.md, "A restart, and init
        containers").
        """
        act = self._book.act_of(known.name)
        message = str(status.get("message", ""))
        denied = "no healthy devices present" in message or "unregistered device" in message
        unstarted = not all(map(_began, status.get("containerStatuses") or ()))
        return denied and act is not None and (act.kind.init is not None or unstarted)

    def _count_refusal(self, known: Seen, status: dict[str, Any]) -> None:
        act = self._book.act_of(known.name)
        reason = status.get("reason") or "no reason"
        wrong = act is not None and (act.kind.forged or act.kind.misrouted)
        self.refused[f"{reason}{', forged or misrouted' if wrong else ''}"] += 1
        if not wrong:
            self.reasons[NUMBERS.sub("N", status.get("message", ""))[:160]] += 1
            told = status.get("message") or json.dumps(status.get("containerStatuses"))
            self._log(f"refused {known.name}: {reason} {told[:600]}")

    def _log_events(self, known: Seen) -> None:
        """Log what the API's events say of a pod, for whoever looks for the cause."""
        with contextlib.suppress(NoAnswerError):
            for each in self._api.list(f"{EVENTS}?fieldSelector=involvedObject.name%3D{known.name}"):
                words = f"{each.get('count') or 1} x {each.get('reason')} {each.get('message')}"
                self._log(f"event of {known.name}: {words[:500]}")

    def _gone(self, known: Seen) -> None:
        act = self._book.act_of(known.name)
        # One that may have ended by itself since the last look, and was collected, is not missed.
        due = act is not None and act.end == "alone" and time.monotonic() - known.ran_since > act.life_s - 2
        if known.ran_since and not known.ended and not due and not self._may_go(known):
            if self._is_surplus(act):
                self.surplus.append(known.name)
            else:
                self._harm(known, "gone")

    def _is_surplus(self, act: Act | None) -> bool:
        """Return whether a Job had more pods than it asks: its controller was cut off, and deletes the others."""
        if act is None or not act.copies:
            return False
        names = [
            each["metadata"]["name"]
            for each in self.present.values()
            if (each.get("status") or {}).get("phase") != "Failed"
        ]
        return sum(self._book.act_of(name) is act for name in names) > act.copies

    def _lived_s(self, known: Seen) -> tuple[float, float]:
        """Return for how long a pod's container lived at least, and at most, by the looks at which it was there."""
        if known.lived is None:
            return 0.0, 0.0
        first, last = known.lived
        after = self._looks[last + 1] if last + 1 < len(self._looks) else time.monotonic()
        return self._looks[last] - self._looks[first], after - self._looks[first - 1]

    def _may_be_done(self, known: Seen) -> bool:
        """Return whether a pod that ends by itself may have lived as long as it was to, and lives no more."""
        act = self._book.act_of(known.name)
        ends = act is not None and act.end == "alone" and self._lived_s(known)[1] > act.life_s
        return ends and known.lived is not None and known.lived[1] < len(self._looks) - 1

    def _may_go(self, known: Seen) -> bool:
        act = self._book.act_of(known.name)
        return act is None or act.name in self._book.let_go

    def _harm(self, known: Seen, words: str) -> None:
        ago_s = time.monotonic() - self._looks[known.lived[1]] if known.lived else -1.0
        least_s, most_s = self._lived_s(known)
        words = f"{words}; its container lived {least_s:.1f} to {most_s:.1f} s and was seen {ago_s:.1f} s ago"
        self.harmed.append(f"{known.name}: {words}")
        self._log(f"HARMED {known.name}: {words}")


def _began(container: dict[str, Any]) -> bool:
    return "running" in (container.get("state") or {}) or any(map(_started, _ends([container])))


def _initial(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return status.get("initContainerStatuses") or []


def _waiting(container: Mapping[str, Any]) -> str:
    """Return the state of a container in words."""
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    return " ".join((*state, waiting.get("reason") or "", waiting.get("message") or "")).strip()


def _ends(containers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how containers ended, also those that were started again since."""
    states = [each.get(key) or {} for each in containers for key in ("state", "lastState")]
    return [each["terminated"] for each in states if "terminated" in each]


def _started(end: dict[str, Any]) -> bool:
    return (end.get("startedAt") or _NEVER) != _NEVER
