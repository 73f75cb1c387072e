"""What the disk refused: laws over all sequences of up to five events."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest

from tessera.core.storage.models.refusals import DiskRefusals

STEP_S = 1900.0
"""Between two events: what is stuck stays so over one of them, and not over two."""
EVENTS: dict[str, Callable[[DiskRefusals, float], DiskRefusals]] = {
    "pass": lambda refusals, now_s: refusals.next_pass(now_s),
    "a failed": lambda refusals, now_s: refusals.failure("a", f"at {now_s}"),
    "b failed": lambda refusals, now_s: refusals.failure("b", f"at {now_s}"),
    "a stays": lambda refusals, now_s: refusals.stays("a", f"at {now_s}", now_s),
    "b stays": lambda refusals, now_s: refusals.stays("b", f"at {now_s}", now_s),
    "a remains": lambda refusals, now_s: refusals.remains("a", f"at {now_s}"),
    "a gone": lambda refusals, _now_s: refusals.removed({"a", "c"}),
    "c remains": lambda refusals, now_s: refusals.remains("c", f"at {now_s}"),
}


def sequences() -> Iterator[tuple[tuple[str, ...], DiskRefusals]]:
    """Yield all sequences of up to five events, with what is known after them."""
    known: dict[tuple[str, ...], DiskRefusals] = {(): DiskRefusals()}
    for number in range(5):
        known = {
            (*events, event): happen(refusals, number * STEP_S)
            for (events, refusals), (event, happen) in product(known.items(), EVENTS.items())
        }
        yield from known.items()


def last(events: Sequence[str], event: str, begin: int, end: int) -> str:
    """Return the reason of the last such event in a part of the sequence; empty for none."""
    return next((f"at {each * STEP_S}" for each in reversed(range(begin, end)) if events[each] == event), "")


def test_laws_of_all_sequences_of_up_to_five_events() -> None:
    count = 0
    for events, refusals in sequences():
        count += 1
        end = len(events)
        passes = [place for place, each in enumerate(events) if each == "pass"]
        now, before = ([0, 0, *passes])[-1], ([0, 0, *passes])[-2]
        for name in "ab":
            # 1. A failure is one of its pass, and is known in the next one too.
            failed = last(events, f"{name} failed", now, end)
            former = last(events, f"{name} failed", before, now) if passes else ""
            remained = last(events, f"{name} remains", before, now) if passes else ""
            assert refusals.failed.get(name, "") == failed, events
            assert (name in refusals.failing) == bool(failed or former), events
            for reason in {failed, former, remained, last(events, f"{name} remains", now, end)} - {""}:
                assert refusals.is_known(name, reason), events
            assert not refusals.is_known(name, "another"), events
            # 2. What stays is stuck, for its last reason, until an hour has passed at the begin of a pass.
            begun = [each for each in range(end) if events[each] == f"{name} stays"]
            over = {each for each in begun for at in passes if at > each and (at - each) * STEP_S >= 3600}
            over |= {each for each in begun if f"{name} gone" in events[each:]}
            stuck = [each for each in begun if each not in over]
            assert refusals.stuck.get(name, "") == (f"at {stuck[-1] * STEP_S}" if stuck else ""), events
        # 3. What remains is of the pass alone, and takes room whatever model it is of.
        remaining = {name: reason for name in "ac" if (reason := last(events, f"{name} remains", now, end))}
        assert refusals.remaining == remaining, events
        assert refusals.of(()) == tuple(remaining.values())
        assert refusals.of(refusals.stuck) == tuple(dict(sorted((remaining | dict(refusals.stuck)).items())).values())
    assert count == sum(len(EVENTS) ** length for length in range(1, 6))


@pytest.mark.parametrize("jump_s", [-1e9, -7200.0, 7200.0, 1e9])
def test_a_clock_that_jumps_leaves_nothing_stuck_for_longer(jump_s: float) -> None:
    assert not DiskRefusals().stays("a", "EIO", 5000.0).next_pass(5000.0 + jump_s).stuck
