"""Elections in virtual time over a bad network: one leads at a time, work ends in time, leases are freed."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import virtualtime
from tessera.clients.kube import (
    EVERYTHING,
    LEASES,
    Kind,
    Listing,
    MemoryKube,
    Object,
    Selection,
    Subresource,
    Tunnel,
    WatchEvent,
)
from tessera.clients.kube.election import Election, LeaseLock
from tessera.core.cluster.protocols.leadership import Terms
from tessera.errors import Unavailable

LOCK = LeaseLock(lease="controller", namespace="tessera-system")


class BadNetwork:
    """A way to the API on which calls take their time, get lost, or are answered to nobody."""

    def __init__(self, kube: MemoryKube, fates: list[tuple[float, float, str]]) -> None:
        self.kube = kube
        self.fates: Iterator[tuple[float, float, str]] = itertools.cycle(fates)

    async def _carried(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        out_s, back_s, fate = next(self.fates)
        await asyncio.sleep(out_s)
        if fate == "refused":
            raise Unavailable("API", found="refusal", expected="an answer")
        if fate == "lost":
            await asyncio.sleep(1000)
        answer = asyncio.ensure_future(call())
        await asyncio.sleep(back_s)
        if fate == "unanswered":
            await asyncio.sleep(1000)
        return await answer

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        found: Object | None = await self._carried(lambda: self.kube.get(kind, name, namespace))
        return found

    async def create(self, kind: Kind, body: Object) -> Object:
        made: Object = await self._carried(lambda: self.kube.create(kind, body))
        return made

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Subresource = ""
    ) -> Object:
        made: Object = await self._carried(
            lambda: self.kube.patch(kind, name, body, namespace=namespace, subresource=subresource)
        )
        return made

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        raise NotImplementedError

    async def version(self, kind: Kind, selection: Selection = EVERYTHING) -> str:
        raise NotImplementedError

    def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError

    async def apply(
        self, kind: Kind, body: Object, *, manager: str, force: bool = False, subresource: Subresource = ""
    ) -> Object:
        raise NotImplementedError

    async def bind(self, name: str, namespace: str, *, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        raise NotImplementedError

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", grace_s: int | None = None
    ) -> None:
        raise NotImplementedError

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        raise NotImplementedError

    async def ask_pod(self, name: str, namespace: str, *, port: int, path: str, most: int, tls: bool = False) -> bytes:
        raise NotImplementedError

    def tunnel(self, name: str, namespace: str, *, port: int) -> AbstractAsyncContextManager[Tunnel]:
        raise NotImplementedError

    def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Leaders:
    """Who works, and when each began and ended."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.spans: list[tuple[str, float, float]] = []

    def work(self, name: str, lasts_s: float = 1e9, stops_s: float = 0.0) -> Callable[[], Coroutine[Any, Any, None]]:
        async def work() -> None:
            self.now.append(name)
            assert len(self.now) == 1, f"{self.now} at once"
            began_s = asyncio.get_running_loop().time()
            try:
                await asyncio.sleep(lasts_s)
            finally:
                await asyncio.sleep(stops_s)
                self.now.remove(name)
                self.spans.append((name, began_s, asyncio.get_running_loop().time()))

        return work


_TIMES = st.sampled_from([0.0, 0.01, 0.3, 2.0, 4.0])
_FATES = st.sampled_from(["answered"] * 5 + ["refused", "lost", "unanswered"])
_NETWORK = st.lists(st.tuples(_TIMES, _TIMES, _FATES), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(st.lists(_NETWORK, min_size=2, max_size=3), st.sampled_from([0.0, 4.9]))
def test_the_work_of_two_never_overlaps(networks: list[list[tuple[float, float, str]]], stops_s: float) -> None:
    """Work has the rest of the lease, 5 s, to end in; work that needs less never meets that of another."""

    async def elect() -> None:
        kube, leaders = MemoryKube(), Leaders()
        candidates = [
            Election(BadNetwork(kube, fates), LOCK, f"p{number}").run(leaders.work(f"p{number}", stops_s=stops_s))
            for number, fates in enumerate(networks)
        ]
        tasks = [asyncio.create_task(each) for each in candidates]
        _, running = await asyncio.wait(tasks, timeout=400.0)
        for task in running:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended

    virtualtime.run(elect())


def test_another_leads_at_once_when_the_leader_stops_and_in_time_when_it_vanishes() -> None:
    async def elect() -> None:
        kube, leaders, troubles = MemoryKube(), Leaders(), list[Exception]()
        good = [(0.01, 0.01, "answered")]
        one = Election(BadNetwork(kube, good), LOCK, "one")
        cut_off = BadNetwork(kube, good)
        two = Election(cut_off, LOCK, "two", on_error=troubles.append)
        three = Election(BadNetwork(kube, good), LOCK, "three")
        assert two.problem == "the Lease has not been read yet"
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(one.run(leaders.work("one")))
            await asyncio.sleep(30)
            assert (leaders.now, one.leading, two.leading) == (["one"], True, False)
            second = tasks.create_task(two.run(leaders.work("two")))
            await asyncio.sleep(30)
            assert (one.problem, two.problem) == ("", ""), "one leads, the other stands by"
            first.cancel()
            await asyncio.sleep(5)
            assert leaders.now == ["two"]
            third = tasks.create_task(three.run(leaders.work("three")))
            cut_off.fates = itertools.repeat((0.0, 0.0, "lost"))
            await asyncio.sleep(20)
            assert leaders.now == ["three"]
            assert "no answer" in two.problem
            second.cancel()
            third.cancel()
        lease = await kube.get(LEASES, "controller", "tessera-system")
        assert lease is not None
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("", 2)
        (_, _, one_end), (_, two_began, two_end), (_, three_began, _) = leaders.spans
        assert 0 < two_began - one_end < 4.5, "freed by who stopped"
        assert 5 <= three_began - two_end < 10, "taken when the lease was over"
        assert any("no answer" in str(error) for error in troubles)

    virtualtime.run(elect())


def test_work_that_returns_ends_the_candidacy_and_frees_the_lease() -> None:
    async def elect() -> None:
        kube, leaders, answers = MemoryKube(), Leaders(), Counter[str]()
        first = Election(kube, LOCK, "one", on_answer=lambda: answers.update(["one"]))
        await first.run(leaders.work("one", lasts_s=60))
        assert answers["one"] > 60 / LOCK.terms.renew_s
        await asyncio.wait_for(Election(kube, LOCK, "two").run(leaders.work("two", lasts_s=1)), 2)
        assert [name for name, _, _ in leaders.spans] == ["one", "two"]

    virtualtime.run(elect())


def test_an_error_of_the_work_is_raised_and_the_lease_is_free() -> None:
    async def elect() -> None:
        kube = MemoryKube()

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await Election(kube, LOCK, "one").run(fail)
        lease = await kube.get(LEASES, "controller", "tessera-system")
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == ""

    virtualtime.run(elect())


def test_a_stop_while_the_api_is_away_is_reported_and_does_not_last() -> None:
    async def elect() -> None:
        kube, leaders, troubles = MemoryKube(), Leaders(), list[Exception]()
        task = asyncio.create_task(Election(kube, LOCK, "one", on_error=troubles.append).run(leaders.work("one")))
        await asyncio.sleep(5)
        kube.stop()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 6)
        assert any("stopped" in str(error) for error in troubles)

    virtualtime.run(elect())


def test_work_that_does_not_end_is_reported() -> None:
    async def elect() -> None:
        kube, leaders, troubles = MemoryKube(), Leaders(), list[Exception]()
        election = Election(kube, LOCK, "one", on_error=troubles.append)
        task = asyncio.create_task(election.run(leaders.work("one", stops_s=20)))
        await asyncio.sleep(5)
        kube.stop()
        await asyncio.sleep(40)
        assert leaders.now == []
        kube.start()
        await asyncio.sleep(20)
        assert leaders.now == ["one"], "it leads again"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert any("continues after it was canceled" in str(error) for error in troubles)

    virtualtime.run(elect())


def test_a_lease_that_others_write_is_looked_at_anew() -> None:
    """Who edits the lease disturbs nobody; who takes it is obeyed at once."""

    async def elect() -> None:
        kube, leaders = MemoryKube(), Leaders()
        lock = LeaseLock(lease="controller", namespace="tessera-system", terms=Terms(lease_s=30, renew_s=20))
        election = Election(kube, lock, "one")
        task = asyncio.create_task(election.run(leaders.work("one")))
        await asyncio.sleep(5)
        label = {"metadata": {"labels": {"a": "b"}}}
        await kube.patch(LEASES, "controller", label, namespace="tessera-system")
        await asyncio.sleep(30)
        assert leaders.spans == []
        await kube.patch(LEASES, "controller", {"spec": {"holderIdentity": "thief"}}, namespace="tessera-system")
        await asyncio.sleep(3)
        assert (leaders.now, election.leading) == ([], False)
        await asyncio.sleep(33)
        assert leaders.now == ["one"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtualtime.run(elect())
