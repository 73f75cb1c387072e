"""A rollout under a constant load, as a closed loop: pods that serve, what is observed of them, and the decisions."""

import random
from collections.abc import Iterator

import msgspec
import pytest

from builders.serverfacts import server_facts
from tessera.core.serving.autoscaling.decisions import ScalingState, decide_replicas
from tessera.core.serving.metrics.counters import Counters
from tessera.core.serving.metrics.observed import ServerState, observe

RATE, SERVICE_S = 10, 10.0
"""A hundred requests in flight, of which a pod serves 20: seven pods, or eight by what is at the beginning."""


class Pod(msgspec.Struct):
    """A pod that serves so many requests at once, whatever its spec says."""

    name: str
    serves: int
    ready_s: float
    revision: str = "1"
    running: list[float] = []
    """When each of them ends."""
    waiting: list[float] = []
    """How long each of them will take."""
    completed: int = 0

    def go_on(self, at_s: float) -> None:
        """End requests, and begin others in their place."""
        left = [end for end in self.running if end > at_s]
        self.completed += len(self.running) - len(left)
        begun = self.waiting[: self.serves - len(left)]
        self.running, self.waiting = left + [at_s + each for each in begun], self.waiting[len(begun) :]

    def counters(self, at_s: float) -> Counters:
        """Return what its engine says."""
        return Counters(
            at_s=at_s,
            started_s=self.ready_s,
            queued_s=0.0,
            dequeued=self.completed,
            served_s=self.completed * SERVICE_S,
            completed=self.completed,
            waiting=len(self.waiting),
            running=len(self.running),
        )


def roll(pods: list[Pod], at_s: float, cold_start_s: float, serves: int) -> bool:
    """Replace a pod of the former template as soon as a new one is ready; return whether the rollout goes on."""
    old, new = ([each for each in pods if each.revision == revision] for revision in "12")
    if not old or any(each.ready_s > at_s for each in new):
        return bool(old)
    if new:
        new[-1].waiting += old[0].waiting + [SERVICE_S] * len(old[0].running)
        pods.remove(old[0])
    if len(old) > 1 or not new:
        pods.append(Pod(f"new-{at_s}", serves, at_s + cold_start_s, "2"))
    return True


def passes(cold_start_s: float, serves: int, hours: float) -> Iterator[tuple[int, int]]:
    """Yield the ready pods and the requests that wait in them, each 15 s from a rollout on."""
    draw, hour, at_s = random.Random(1), 3600.0, 0.0
    pods = [Pod(f"pod-{number}", 20, 0.0) for number in range(4)]
    state, scaling, desired, fewer_s = ServerState(), ScalingState(), 4, 0.0
    while at_s < (1 + hours) * hour:
        for _ in range(15):
            at_s += 1
            ready = [each for each in pods if each.ready_s <= at_s]
            for _ in range(int(draw.gauss(RATE, RATE**0.5) + 0.5)):
                emptiest = min(ready, key=lambda each: len(each.running) + len(each.waiting))
                emptiest.waiting.append(draw.expovariate(1 / SERVICE_S))
            for each in ready:
                each.go_on(at_s)
        rolling = at_s > hour and roll(pods, at_s, cold_start_s, serves)
        ready = [each for each in pods if each.ready_s <= at_s]
        if at_s > hour:
            yield len(ready), sum(len(each.waiting) for each in ready)
        counters = {each.name: each.counters(at_s) for each in ready}
        state, observation = observe(state, counters, at_s=at_s, replicas=desired, ready=counters.keys())
        facts = server_facts(
            replicas=desired,
            ready=len(ready),
            max_replicas=12,
            slots=256,
            revision="2" if at_s > hour else "1",
            rolling=rolling,
            cold_start_s=cold_start_s,
        )
        scaling, found = decide_replicas(scaling, facts, observation.load, at_s)
        wanted = found.replicas or desired
        # One a minute less, as the HorizontalPodAutoscaler is rendered.
        if wanted < desired and at_s >= fewer_s + 60:
            desired, fewer_s = desired - 1, at_s
            pods.pop()
        pods += [
            Pod(f"pod-{at_s}-{number}", 20 if at_s < hour else serves, at_s + cold_start_s, "2" if at_s > hour else "1")
            for number in range(desired, wanted)
        ]
        desired = max(desired, wanted)


@pytest.mark.parametrize("cold_start_s", [120.0, 600.0])
def test_requests_hardly_wait_during_and_after_a_rollout_of_pods_that_serve_as_many(cold_start_s: float) -> None:
    found = list(passes(cold_start_s, 20, 4))
    assert max(waiting for _, waiting in found) <= 50
    assert sum(waiting for _, waiting in found) / len(found) <= 1
    assert min(ready for ready, _ in found) >= 6


def test_pods_of_a_new_template_that_serve_more_become_fewer_within_hours() -> None:
    found = list(passes(120.0, 60, 4))
    assert min(ready for ready, _ in found[:120]) >= 6
    assert max(ready for ready, _ in found[-120:]) <= 4
    assert sum(waiting for _, waiting in found) / len(found) <= 1
