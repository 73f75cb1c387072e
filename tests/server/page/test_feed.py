"""The page's channels: which events a viewer gets, and when the fleet is observed."""

import asyncio
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from builders.fleetviews import VIEWS, applied
from harness.virtualtime import run
from tessera.api.tessera.page.fleetjson import (
    PageChangeFields,
    PageFleetFields,
    write_change,
    write_event,
    write_fleet,
)
from tessera.core.explain.fleetscope import EVERYTHING, Scope
from tessera.core.explain.fleetview import FleetChange, FleetView, changes
from tessera.errors import Unavailable
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.page import feed as module
from tessera.server.page.feed import Channel, FleetFeed
from tessera.server.settings import PageLimits

ML = Scope(namespaces=frozenset({"ml"}))


def view(*notes: str) -> FleetView:
    return FleetView(nodes=(), namespaces=("ml", "vision"), notes=notes)


def changed(channel: Channel, *notes: str) -> bytes:
    """Let a channel take a view that differs; return the change."""
    change = write_change(FleetChange(rest=view(*notes)))
    channel.take(view(*notes), change)
    return change


def test_a_new_viewer_gets_the_whole_fleet_and_then_each_change_once() -> None:
    channel = Channel(EVERYTHING, "c")
    assert channel.since("") == ([], "")
    changed(channel, "first")
    assert channel.since("") == ([write_event("fleet", write_fleet(view("first")), "c-1")], "c-1")
    assert channel.since("c-1") == ([], "c-1")
    second, third = changed(channel, "second"), changed(channel, "third")
    assert channel.since("c-1") == (
        [write_event("change", second, "c-2"), write_event("change", third, "c-3")],
        "c-3",
    )
    assert channel.since("c-3") == ([], "c-3")


def taken(shown: FleetView | None, event: bytes) -> FleetView:
    """Return what a viewer sees after an event."""
    head, _, data = event.removesuffix(b"\n\n").partition(b"data: ")
    if head.startswith(b"event: fleet"):
        fleet = msgspec.json.decode(data, type=PageFleetFields)
        return msgspec.convert(fleet, FleetView, from_attributes=True)
    assert shown is not None, "a change is of a fleet that was sent"
    change = msgspec.json.decode(data, type=PageChangeFields)
    return applied(shown, msgspec.convert(change, FleetChange, from_attributes=True))


@given(st.lists(st.tuples(VIEWS, st.booleans()), max_size=12))
def test_a_viewer_who_comes_and_goes_has_the_present_fleet_whenever_they_are_there(
    steps: list[tuple[FleetView, bool]],
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_KEPT", 3)
        channel = Channel(EVERYTHING, "c")
    shown, last = None, ""
    for view, present in steps:
        change = changes(channel.view or FleetView(nodes=()), view)
        channel.take(view, write_change(change) if change else b"")
        if present:
            events, last = channel.since(last)
            for each in events:
                shown = taken(shown, each)
            assert shown == view


def test_the_first_viewer_after_a_rest_gets_nothing_of_before() -> None:
    """Hours may have passed; who reconnects gets what they missed, and the present fleet."""
    channel = Channel(EVERYTHING, "c")
    for note in ("first", "second"):
        changed(channel, note)
    channel.rest()
    assert [channel.since(last) for last in ("", "c-1", "c-2")] == [([], ""), ([], "c-1"), ([], "c-2")]
    third = changed(channel, "third")
    assert channel.since("") == ([write_event("fleet", write_fleet(view("third")), "c-3")], "c-3")
    assert [len(channel.since(last)[0]) for last in ("c-1", "c-3")] == [2, 0]
    assert channel.since("c-2")[0] == [write_event("change", third, "c-3")]
    channel.rest()
    channel.take(view("third"), b"")
    assert [len(channel.since(last)[0]) for last in ("", "c-3")] == [1, 0], "also where nothing changed"


def test_a_view_without_a_change_is_no_event() -> None:
    channel = Channel(EVERYTHING, "c")
    changed(channel, "first")
    channel.take(view("first"), b"")
    assert channel.since("c-1") == ([], "c-1")


@pytest.mark.parametrize("last", ["", "-", "c-", "c-0", "c--1", "c-99", "d-2", "c-two", "c-" + "9" * 5000])
def test_whoever_names_no_event_of_the_channel_gets_the_whole_fleet(last: str) -> None:
    channel = Channel(EVERYTHING, "c")
    for note in ("first", "second", "third"):
        changed(channel, note)
    assert channel.since(last) == ([write_event("fleet", write_fleet(view("third")), "c-3")], "c-3")


def test_whoever_missed_more_changes_than_are_kept_gets_the_whole_fleet() -> None:
    channel = Channel(EVERYTHING, "c")
    for number in range(66):
        changed(channel, str(number))
    assert [len(channel.since(last)[0]) for last in ("c-1", "c-2", "c-65")] == [1, 64, 1]
    assert channel.since("c-1")[0][0].startswith(b"event: fleet")
    assert channel.since("c-2")[0][0].startswith(b"event: change")


def test_changes_of_many_bytes_are_not_kept_for_those_who_missed_them() -> None:
    channel = Channel(EVERYTHING, "c")
    for number in range(5):
        changed(channel, str(number) * 400_000)
    whole, last = channel.since("c-2")
    assert ([each[:12] for each in whole], last) == ([b"event: fleet"], "c-5"), "three changes have more than 1 MiB"
    assert [each[:13] for each in channel.since("c-3")[0]] == [b"event: change"] * 2
    changed(channel, "6" * 2_000_000)
    assert [each[:13] for each in channel.since("c-5")[0]] == [b"event: change"], "the last one is kept in any case"
    assert channel.since("c-4")[0][0].startswith(b"event: fleet")


@pytest.mark.anyio
async def test_a_channel_without_viewers_keeps_what_is_small_and_goes_on_where_it_was() -> None:
    feed = FleetFeed(never, Measures(), logger())
    with feed.joined(ML) as channel:
        changed(channel, "first")
        changed(channel, "second")
        assert await channel.fleet() is await channel.fleet() != b"", "it is written once for all who ask"
        last = channel.since("")[1]
    with feed.joined(ML) as channel:
        channel.take(view("second"), b"")
        assert [each[:13] for each in channel.since(last.replace("-2", "-1"))[0]] == [b"event: change"]
        changed(channel, "6" * 2_000_000)
    with feed.joined(ML) as channel:
        channel.take(view("6" * 2_000_000), b"")
        assert channel.since(last)[0][0].startswith(b"event: fleet"), "nobody was there who needed the change"


@pytest.mark.anyio
async def test_a_channel_is_that_of_all_viewers_with_the_same_permissions() -> None:
    feed = FleetFeed(never, Measures(), logger())
    with feed.joined(ML) as one, feed.joined(ML) as other, feed.joined(EVERYTHING) as third:
        assert one is other is not third
        assert feed.viewers == 3
    assert feed.viewers == 0
    with feed.joined(ML) as again:
        assert again is one, "who reconnects goes on where they were"


@pytest.mark.anyio
async def test_of_many_channels_without_viewers_those_used_last_are_kept() -> None:
    feed = FleetFeed(never, Measures(), logger())
    with feed.joined(ML) as first:
        for number in range(100):
            with feed.joined(Scope(namespaces=frozenset({str(number)}))):
                pass
    with feed.joined(ML) as again:
        assert again is first, "it has a viewer"
    for number in range(100, 200):
        with feed.joined(Scope(namespaces=frozenset({str(number)}))):
            pass
    with feed.joined(ML) as late:
        assert late is not first


async def never() -> FleetView:
    raise AssertionError


@pytest.mark.anyio
async def test_viewers_are_given_what_is_in_their_scope() -> None:
    async def observe() -> FleetView:
        return view("known")

    feed = FleetFeed(observe, Measures(), logger())
    with feed.joined(ML) as scoped, feed.joined(EVERYTHING) as full:
        running = asyncio.create_task(feed.run())
        async with asyncio.timeout(20):
            await asyncio.gather(scoped.refreshed(), full.refreshed())
        assert scoped.view is not None
        assert (full.view, scoped.view.namespaces, scoped.view.partial) == (view("known"), ("ml",), True)
        assert feed.namespaces == ("ml", "vision")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_fleet_is_observed_once_while_nobody_looks_and_again_until_it_can_be_read() -> None:
    failures = [Unavailable("API server", found="silence", expected="an answer"), ValueError("a defect")]
    observed: list[float] = []

    async def observe() -> FleetView:
        observed.append(asyncio.get_running_loop().time())
        if failures:
            raise failures.pop()
        return view()

    async def hour() -> None:
        feed = FleetFeed(observe, Measures(), logger())
        running = asyncio.create_task(feed.run())
        await asyncio.sleep(3600)
        assert feed.refreshed.is_set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with capture_logs() as logs:
        run(hour())
    assert observed == [0.0, 31.0, 62.0]
    assert [each["event"] for each in logs] == ["page_not_renewed"] * 2


@pytest.mark.anyio
async def test_a_feed_that_closes_wakes_all_viewers() -> None:
    feed = FleetFeed(never, Measures(), logger())
    with feed.joined(ML) as channel:
        waiting = asyncio.create_task(channel.refreshed())
        await asyncio.sleep(0)
        feed.close()
        async with asyncio.timeout(20):
            await waiting
    assert feed.closed


def test_a_fleet_that_takes_long_to_read_is_read_again_after_a_pause_that_a_request_waits_for() -> None:
    observed: list[float] = []

    async def observe() -> FleetView:
        observed.append(asyncio.get_running_loop().time())
        await asyncio.sleep(12)
        raise Unavailable("API server", found="silence", expected="an answer")  # as if there were viewers

    async def minutes() -> None:
        feed = FleetFeed(observe, Measures(), logger())
        running = asyncio.create_task(feed.run())
        for _ in range(300):
            feed.changed()
            await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with capture_logs():
        run(minutes())
    assert [after - before for before, after in itertools.pairwise(observed)] == [42.0] * (len(observed) - 1)
    assert PageLimits().refresh_s > 42
