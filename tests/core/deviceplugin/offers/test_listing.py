"""Devices that leave the kubelet's list, so that none is missing when the kubelet reads what it has chosen."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from harness.plugins import devices
from tessera.core.deviceplugin.offers import listing
from tessera.core.deviceplugin.offers.advertise import ListedDevice
from tessera.core.deviceplugin.offers.listing import (
    STAYS_S,
    Withdrawn,
    asked_for,
    known_unhealthy,
    listed,
    staying,
    withdrawn,
)

IDS = "abcd"


def names(parts: tuple[Withdrawn, ...]) -> str:
    return "".join(each.device.id for each in parts)


def test_a_device_leaves_the_list_when_the_kubelet_has_known_it_as_unhealthy_for_a_while() -> None:
    former = devices("a", "b")
    gone = withdrawn(former, (), devices("a"), 5.0)
    assert listed(devices("a"), gone, former) == devices("a", "b", unhealthy=("b",))
    assert names(staying(gone, (), 1000.0)) == "b", "the kubelet was not seen to know"
    assert known_unhealthy(gone, {"a", "b"}, 6.0, 7.0) == gone, "it may choose it still"
    assert known_unhealthy(gone, {"a"}, 4.0, 7.0) == gone, "it was asked before"
    known = known_unhealthy(gone, {"a"}, 6.0, 7.0)
    assert names(staying(known, (), 7.0 + STAYS_S - 0.1)) == "b"
    assert names(staying(known, {"b"}, 7.0 + STAYS_S)) == "b", "a call with it is not answered"
    assert staying(known, {"a"}, 7.0 + STAYS_S) == ()
    assert names(staying(asked_for(known, {"b"}, 8.0), (), 1000.0)) == "b", "it was asked for again"
    assert asked_for(known, {"a"}, 8.0) == known


def test_what_is_withdrawn_stays_so_until_it_is_offered_again() -> None:
    former = devices("a", "b")
    gone = withdrawn(former, (), (), 5.0)
    assert withdrawn(listed((), gone, former), gone, (), 6.0) == gone
    assert names(withdrawn(former, gone, devices("b"), 6.0)) == "a"


def test_where_a_kubelet_takes_no_more_new_devices_wait_for_those_that_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_DEVICES", 3)
    former, now = devices("a", "b"), devices("c", "b", "d")
    gone = withdrawn(former, (), now, 5.0)
    first = listed(now, gone, former)
    assert first == devices("c", "b", "a", unhealthy=("a",))
    assert listed(now, (), first) == now


class Listings(RuleBasedStateMachine):
    """A plugin that changes its mind at any moment, and a kubelet that loses the processor at any moment.

    Only between its choice and its call, and between the answer and its read, it is bound to go on within `STAYS_S`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        # The plugin.
        self.offered = self.list = tuple[ListedDevice, ...]()
        self.gone: tuple[Withdrawn, ...] = ()
        self.requested: frozenset[str] = frozenset()
        self.unclaimed: frozenset[str] = frozenset()
        # The kubelet.
        self.lists: list[tuple[ListedDevice, ...]] = []
        self.known: dict[str, bool] = {}
        self.chosen: frozenset[str] = frozenset()
        self.answered: frozenset[str] = frozenset()
        self.since = 0.0
        self.question: tuple[float, frozenset[str]] | None = None

    def _list(self) -> None:
        made = listed(self.offered, self.gone, self.list)
        if made != self.list:
            self.list = made
            self.lists.append(made)

    @rule(ids=st.sets(st.sampled_from(IDS)))
    def offer(self, ids: set[str]) -> None:
        self.offered = devices(*sorted(ids))
        self.gone = withdrawn(self.list, self.gone, self.offered, self.now)
        self._list()

    @rule()
    def settle(self) -> None:
        self.gone = staying(self.gone, self.requested | self.unclaimed, self.now)
        self._list()

    @precondition(lambda self: self.lists)
    @rule()
    def read_list(self) -> None:
        self.known = {each.id: each.healthy for each in self.lists.pop(0)}

    @rule()
    def begin_to_ask_what_is_healthy(self) -> None:
        self.question = self.now, frozenset(name for name, healthy in self.known.items() if healthy)

    @precondition(lambda self: self.question)
    @rule()
    def hear_what_is_healthy(self) -> None:
        asked_s, healthy = self.question or (0.0, frozenset())
        self.gone, self.question = known_unhealthy(self.gone, healthy, asked_s, self.now), None

    def _idle(self) -> bool:
        return not (self.chosen or self.requested or self.answered)

    @precondition(lambda self: self._idle() and any(self.known.values()))
    @rule(data=st.data())
    def choose(self, data: Any) -> None:
        healthy = sorted(name for name, healthy in self.known.items() if healthy)
        self.chosen = frozenset(data.draw(st.sets(st.sampled_from(healthy), min_size=1)))
        self.since = self.now

    @precondition(lambda self: self._idle())
    @rule(data=st.data())
    def choose_by_the_newest_list_and_call(self, data: Any) -> None:
        self._read_lists()
        if any(self.known.values()):
            self.choose(data)
            self.call()

    @precondition(lambda self: self._idle() and self.unclaimed)
    @rule()
    def choose_again_what_an_init_container_had(self) -> None:
        self.chosen, self.since = self.unclaimed, self.now

    @precondition(lambda self: self.chosen)
    @rule()
    def call(self) -> None:
        if self.chosen <= {each.id for each in self.list}:
            self.requested = self.chosen
        self.chosen = frozenset()

    @precondition(lambda self: self.requested)
    @rule(recorded=st.booleans())
    def answer(self, recorded: bool) -> None:
        self.gone = asked_for(self.gone, self.requested, self.now)
        self.unclaimed = self.requested if recorded else self.unclaimed
        self.answered, self.requested, self.since = self.requested, frozenset(), self.now

    @precondition(lambda self: self.answered)
    @rule()
    def read_devices(self) -> None:
        assert self.answered <= self.known.keys(), "nil pointer dereference"
        self.answered = frozenset()

    @precondition(lambda self: self._idle())
    @rule()
    def start_container(self) -> None:
        self.unclaimed = frozenset()

    def _read_lists(self) -> None:
        while self.lists:
            self.read_list()

    @rule()
    def everybody_hurries(self) -> None:
        self._read_lists()
        self.begin_to_ask_what_is_healthy()
        self.hear_what_is_healthy()
        self.settle()
        self._read_lists()

    @precondition(lambda self: not (self.chosen or self.answered))
    @rule()
    def everybody_has_time(self) -> None:
        self.everybody_hurries()
        self.now += STAYS_S
        self.everybody_hurries()

    @rule(seconds=st.sampled_from([0.1, 1.0, STAYS_S - 0.1, STAYS_S, 1000.0]))
    def wait(self, seconds: float) -> None:
        late = self.now + seconds >= self.since + STAYS_S
        if not (late and (self.chosen or self.answered)):
            self.now += seconds


@pytest.mark.parametrize("long", [False, True])
def test_a_device_that_is_withdrawn_during_its_call_is_there_when_it_is_read(*, long: bool) -> None:
    walk = Listings()
    walk.offer({"a"})
    walk.everybody_hurries()
    walk.chosen = frozenset("a")
    walk.call()
    walk.offer(set())
    if long:
        walk.everybody_has_time()
    walk.answer(recorded=False)
    walk.everybody_hurries()
    walk.read_devices()
    walk.everybody_has_time()
    assert walk.list == ()


def test_no_device_that_the_kubelet_reads_is_missing() -> None:
    run_state_machine_as_test(Listings, settings=settings(max_examples=200, stateful_step_count=40))
