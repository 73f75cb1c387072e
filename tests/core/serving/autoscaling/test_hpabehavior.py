"""How fast a model server is scaled."""

from tessera.core.serving.autoscaling.hpa import Behavior, HpaHistory, ReplicaBounds, advance
from tessera.core.serving.autoscaling.hpabehavior import scaling_behavior

BOUNDS = ReplicaBounds(1, 100)


def reached(behavior: Behavior, proposed: int, *, current: int, minutes: int) -> list[int]:
    """Return the replicas after each minute in which so many are proposed every 15 s."""
    history, found = HpaHistory(), []
    for step in range(4 * minutes):
        decision = advance(history, proposed, 15.0 * step, current=current, bounds=BOUNDS, behavior=behavior)
        history, current = decision.history, decision.replicas
        found.append(current)
    return found[3::4]


def test_replicas_are_added_as_by_default_and_by_queue_time_one_in_three_minutes() -> None:
    by_default, ours = scaling_behavior("queue-time", one_by_one=False), scaling_behavior("tessera", one_by_one=True)
    paced = scaling_behavior("queue-time", one_by_one=True)
    assert reached(by_default, 40, current=3, minutes=1) == [40]
    assert reached(ours, 40, current=3, minutes=1) == [40], "its metric knows which are ready"
    assert reached(paced, 40, current=3, minutes=7) == [4, 4, 4, 5, 5, 5, 6]


def test_a_fifth_of_the_replicas_is_removed_in_a_minute_and_by_queue_time_one_after_ten() -> None:
    ours, other = (scaling_behavior(each, one_by_one=False) for each in ("tessera", "queue-time"))
    assert reached(ours, 1, current=5, minutes=4) == [4, 3, 2, 1], "few go one by one, and the last of them too"
    assert reached(ours, 1, current=19, minutes=6) == [15, 12, 9, 7, 5, 4]
    assert reached(other, 1, current=6, minutes=13) == [6] * 10 + [5, 4, 3]
