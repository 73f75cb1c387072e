"""What a follower receives: everything once, nothing skipped while the watch can be taken up, marks where it cannot."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import virtualtime
from tessera.clients.kube import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVERYTHING,
    GPU_NODES,
    NODES,
    Change,
    Expired,
    HistoryRewound,
    Kind,
    Listing,
    MemoryKube,
    Object,
    Selection,
    Silent,
    Store,
    WatchEvent,
    follow,
    name_of,
    version_of,
)
from tessera.clients.kube.storage import Backup
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported
from tessera.measures import Measures


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


def text(change: Change) -> str:
    """Return a change in a word: `+` there, `-` gone, `?` where versions may have been skipped, `=` all told."""
    if change.object is None:
        return "="
    return f"{'-' if change.gone else '+'}{name_of(change.object)[1]}{'?' if change.skipped else ''}"


class Followed:
    """An API, what a follower of it received, and its troubles."""

    def __init__(self, kube: MemoryKube) -> None:
        self.kube = kube
        self.told: list[str] = []
        self.troubles: list[Exception] = []
        self.ended: type[BaseException] | None = None

    async def settled(self, seconds: float = 30.0) -> list[str]:
        """Wait, and return what was received since the last call."""
        await asyncio.sleep(seconds)
        told, self.told = self.told, []
        return told


@asynccontextmanager
async def followed(kube: MemoryKube, kind: Kind = CONFIG_MAPS) -> AsyncIterator[Followed]:
    seen = Followed(kube)

    async def run() -> None:
        try:
            async for change in follow(kube, kind, on_error=seen.troubles.append):
                seen.told.append(text(change))
        except HistoryRewound:
            seen.ended = HistoryRewound

    task = asyncio.create_task(run())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait({task})


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        virtualtime.run(test())

    run.__name__ = test.__name__
    return run


async def two_config_maps() -> MemoryKube:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, config_map("one"))
    await kube.create(CONFIG_MAPS, config_map("two"))
    return kube


@in_virtual_time
async def test_a_broken_watch_is_taken_up_where_it_broke() -> None:
    async with followed(await two_config_maps()) as seen:
        assert await seen.settled() == ["+one?", "+two?", "="]
        seen.kube.stop()
        await asyncio.sleep(60)
        seen.kube.start()
        await seen.kube.delete(CONFIG_MAPS, "one", namespace="default")
        await seen.kube.create(CONFIG_MAPS, config_map("one", life="second"))
        assert await seen.settled() == ["-one", "+one"]
        assert all(isinstance(each, Unavailable) for each in seen.troubles)
        assert 6 <= len(seen.troubles) <= 12, "pauses grow to 10 s"


class Mute(MemoryKube):
    """Its first watch, or the next where `mute` is set, says nothing of what happens."""

    mute = True

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        if self.mute:
            self.mute = False
            await asyncio.sleep(150)
            raise Silent("watch", found="nothing in 150 s")
        async for event in super().watch(kind, since, selection):
            yield event


# sentence: what happens before the objects are listed; what the follower gets then, None where it ends
UNHEARD: dict[str, tuple[list[str], list[str] | None]] = {
    "nothing": ([], ["="]),
    "later changes": (["-two", "+three"], ["-two?", "+three?", "="]),
    "a restore of what there is": (["restore now"], ["="]),
    "a restore of before": (["restore one"], None),
    "a restore of before one was written": (["restore one", *["+later"] * 9], None),
    "a restore of before an object was deleted": (["restore three", *["+later"] * 9], None),
}


@pytest.mark.parametrize("case", UNHEARD)
def test_a_follower_that_lists_after_silence_ends_where_etcd_was_restored_from_a_backup(case: str) -> None:
    happened, want = UNHEARD[case]

    async def check() -> None:
        kube, backups = Mute(), dict[str, Backup]()
        await kube.create(CONFIG_MAPS, config_map("one"))
        backups["one"] = kube.backup()
        await kube.create(CONFIG_MAPS, config_map("two"))
        await kube.patch(CONFIG_MAPS, "one", {"data": {"n": "2"}}, namespace="default")
        await kube.create(CONFIG_MAPS, config_map("three"))
        backups["three"], kube.mute = kube.backup(), False
        async with followed(kube) as seen:
            assert await seen.settled() == ["+one?", "+three?", "+two?", "="]
            await kube.delete(CONFIG_MAPS, "three", namespace="default")
            assert await seen.settled() == ["-three"]
            backups["now"], kube.mute = kube.backup(), True
            kube.break_watches()
            assert await seen.settled() == []
            for number, each in enumerate(happened):
                what, name = (each[0], each[1:]) if each[0] in "+-" else each.split()
                if what == "restore":
                    kube.restore(backups[name])
                elif what == "-":
                    await kube.delete(CONFIG_MAPS, name, namespace="default")
                else:
                    await kube.create(CONFIG_MAPS, config_map(f"{name}{number}" if name == "later" else name))
            told = await seen.settled(200)
            assert (None if seen.ended else told) == want

    virtualtime.run(check())


class Lapsing(MemoryKube):
    """Ends or breaks each watch after a bookmark; after the fourth etcd is restored from a backup."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.breaks = breaks
        self.watched: list[str] = []
        self.kept = self.backup()

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        self.watched.append(since)
        await asyncio.sleep(20)
        await self.create(NODES, {"metadata": {"name": f"node{len(self.watched)}"}})
        bookmark = {"metadata": {"resourceVersion": await self.version(kind, selection)}}
        yield WatchEvent(object=bookmark, bookmark=True)
        if len(self.watched) == 2:
            self.kept = self.backup()
        if len(self.watched) == 4:
            self.restore(self.kept)
        if self.breaks:
            raise Unavailable("watch", found="connection refused", hint="it is tried again")


@pytest.mark.parametrize("breaks", [False, True], ids=["the watch ended", "the watch broke"])
def test_a_restore_shows_before_versions_have_caught_up(*, breaks: bool) -> None:
    """Else the next watch goes on at the version after the former one, and its bookmarks hide that it was silent."""

    async def check() -> None:
        kube = Lapsing(breaks=breaks)
        async with followed(kube) as seen:
            assert await seen.settled(70) == ["="]
            assert await seen.settled(20) == []
            assert kube.watched == ["0", "1", "2", "3"]
        assert seen.ended == HistoryRewound

    virtualtime.run(check())


@in_virtual_time
async def test_after_silence_the_objects_are_listed() -> None:
    kube = Mute()
    async with followed(kube) as seen:
        assert await seen.settled() == ["="]
        await kube.create(CONFIG_MAPS, config_map("one"))
        assert await seen.settled(100) == []
        assert await seen.settled(100) == ["+one?", "="]


FORGOTTEN = {
    "the differences are reported and marked": ("three", ["-one?", "+three?", "="]),
    "what came under the name of another is another": ("one", ["-one?", "+one?", "="]),
}


@pytest.mark.parametrize("case", FORGOTTEN)
def test_where_history_is_forgotten(case: str) -> None:
    comes, want = FORGOTTEN[case]

    async def check() -> None:
        async with followed(await two_config_maps()) as seen:
            await seen.settled()
            seen.kube.stop()
            await asyncio.sleep(1)
            seen.kube.start()
            await seen.kube.delete(CONFIG_MAPS, "one", namespace="default")
            await seen.kube.create(CONFIG_MAPS, config_map(comes))
            seen.kube.forget_history()
            assert await seen.settled() == want
            assert isinstance(seen.troubles[-1], Expired)

    virtualtime.run(check())


@in_virtual_time
async def test_a_kind_that_is_not_installed_is_followed_when_it_is() -> None:
    kube = MemoryKube()
    kube.uninstall(GPU_NODES)
    async with followed(kube, GPU_NODES) as seen:
        assert await seen.settled(100) == []
        assert all(isinstance(each, Unsupported) for each in seen.troubles)
        assert 12 <= len(seen.troubles) <= 20, "it goes on trying, at most each 10 s"
        await kube.create(CUSTOM_RESOURCE_DEFINITIONS, {"metadata": {"name": "gpunodes.tessera.dev"}})
        await kube.create(GPU_NODES, {"metadata": {"name": "node1"}})
        assert await seen.settled() == ["+node1?", "="]


class Moody(MemoryKube):
    """Refuses the first lists, each in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[TesseraError] = [
            kind("list", found="HTTP status", expected="success") for kind in (Conflict, InvalidInput, Unsupported)
        ]

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        if self.refusals:
            raise self.refusals.pop()
        return await super().list(kind, selection)


@in_virtual_time
async def test_no_answer_of_the_server_ends_it() -> None:
    kube = Moody()
    await kube.create(CONFIG_MAPS, config_map("one"))
    async with followed(kube) as seen:
        assert await seen.settled() == ["+one?", "="]
        assert [type(each) for each in seen.troubles] == [Unsupported, InvalidInput, Conflict]


@in_virtual_time
async def test_objects_of_a_kind_that_is_uninstalled_go_and_come_again() -> None:
    kube = MemoryKube()
    await kube.create(GPU_NODES, {"metadata": {"name": "node1"}})
    async with followed(kube, GPU_NODES) as seen:
        assert await seen.settled() == ["+node1?", "="]
        kube.uninstall(GPU_NODES)
        assert await seen.settled() == ["-node1"]
        await kube.create(CUSTOM_RESOURCE_DEFINITIONS, {"metadata": {"name": "gpunodes.tessera.dev"}})
        assert await seen.settled() == ["="]


class Ending(MemoryKube):
    """An API that ends each watch in order, after a word or without one."""

    def __init__(self, *, bookmarks: bool) -> None:
        super().__init__()
        self.bookmarks = bookmarks
        self.since: list[str] = []
        self.lists = 0

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Any:
        self.lists += 1
        return await super().list(kind, selection)

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        del selection
        await asyncio.sleep(0.1)
        self.since.append(since)
        if self.bookmarks:
            yield WatchEvent(object={"metadata": {"resourceVersion": await self.version(kind)}}, bookmark=True)

    async def version(self, kind: Kind, selection: Selection = EVERYTHING) -> str:
        del kind, selection
        return f"{len(self.since)}00" if self.bookmarks else "0"


@in_virtual_time
async def test_a_bookmark_is_where_the_next_watch_begins() -> None:
    kube = Ending(bookmarks=True)
    async with followed(kube) as seen:
        assert await seen.settled(0.35) == ["="]
    assert kube.since == ["0", "100", "200"]
    assert kube.lists == 1


@in_virtual_time
async def test_a_bookmark_is_word_that_nothing_has_changed() -> None:
    words: list[float] = []

    def clock_s() -> float:
        words.append(asyncio.get_running_loop().time())
        return words[-1]

    measures = Measures(clock_s)
    task = asyncio.create_task(Store(Ending(bookmarks=True), CONFIG_MAPS).run(measures))
    await asyncio.sleep(0.35)
    task.cancel()
    began_s = words[0]
    assert [round(each - began_s, 1) for each in words] == [0, 0.1, 0.2, 0.3]
    assert b'loop="watch-configmaps"' in measures.render()


@in_virtual_time
async def test_a_server_that_ends_every_watch_at_once_is_not_asked_without_pause() -> None:
    kube = Ending(bookmarks=False)
    async with followed(kube) as seen:
        assert await seen.settled(100) == ["="]
    assert 10 <= len(kube.since) <= 20


@in_virtual_time
async def test_a_store_tells_its_owner_each_change_after_taking_it() -> None:
    kube = await two_config_maps()
    told: list[tuple[str, int]] = []
    store = Store(kube, CONFIG_MAPS, on_change=lambda change: told.append((text(change), len(store.objects))))
    task = asyncio.create_task(store.run())
    await store.synced()
    await kube.delete(CONFIG_MAPS, "one", namespace="default")
    await asyncio.sleep(1)
    assert told == [("+one?", 1), ("+two?", 2), ("=", 2), ("-one", 1)]
    task.cancel()
    await asyncio.wait({task})


@in_virtual_time
async def test_watchers_of_many_pods_get_their_own() -> None:
    """A thousand nodes, each followed for its pods; each receives its own, in order, and nothing else."""
    kube, nodes, pods = MemoryKube(), 1000, 3
    pod = Kind(name="Pod", plural="pods")
    told: dict[int, list[str]] = {number: [] for number in range(nodes)}

    async def run(number: int) -> None:
        selection = Selection(fields=(("spec.nodeName", f"node{number}"),))
        async for change in follow(kube, pod, selection):
            told[number].append(text(change))

    tasks = [asyncio.create_task(run(number)) for number in range(nodes)]
    await asyncio.sleep(1)
    names = [(number, f"p{number}-{each}") for each in range(pods) for number in range(nodes)]
    uids = {}
    for _, name in names:
        made = await kube.create(pod, {"metadata": {"name": name, "namespace": "default"}, "spec": {}})
        uids[name] = made["metadata"]["uid"]
    for number, name in names:
        await kube.bind(name, "default", uid=uids[name], node=f"node{number}", annotations={})
    await kube.delete(pod, "p7-0", namespace="default")
    await asyncio.sleep(1)
    want = {number: ["=", *(f"+p{number}-{each}" for each in range(pods))] for number in range(nodes)}
    want[7].append("-p7-0")
    assert told == want
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


_NAMES = st.sampled_from(["a", "b", "c"])
_STEP = st.one_of(
    st.tuples(st.sampled_from(["write", "delete"]), _NAMES),
    st.tuples(st.sampled_from(["break", "compact", "stop", "start", "wait"]), st.just("")),
)
_STEPS = st.lists(_STEP, max_size=40)


class Truth:
    """What really happened to each object, by uid: its versions in order, and its end."""

    def __init__(self, kube: MemoryKube) -> None:
        self.kube = kube
        self.history: dict[str, list[str]] = {}
        self.writes = 0

    async def step(self, what: str, name: str) -> None:
        kube = self.kube
        self.writes += 1
        if what == "wait":
            await asyncio.sleep(15)
        elif what == "compact":
            kube.forget_history()
        elif what == "break":
            kube.break_watches()
        elif what == "stop":
            kube.stop()
        elif what == "start":
            kube.start()
        else:
            with contextlib.suppress(Unavailable):
                await self._change(what, name)

    async def _change(self, what: str, name: str) -> None:
        present = await self.kube.get(CONFIG_MAPS, name, "default")
        if what == "delete":
            await self.kube.delete(CONFIG_MAPS, name, namespace="default")
            if present is not None:
                self.history[present["metadata"]["uid"]].append("gone")
            return
        body = {"data": {"n": str(self.writes)}}
        if present is None:
            stored = await self.kube.create(CONFIG_MAPS, config_map(name) | body)
        else:
            stored = await self.kube.patch(CONFIG_MAPS, name, body, namespace="default")
        self.history.setdefault(stored["metadata"]["uid"], []).append(version_of(stored))


@settings(max_examples=80, deadline=None)
@given(_STEPS)
def test_what_is_skipped_is_marked_and_in_the_end_nothing_lacks(steps: list[tuple[str, str]]) -> None:
    """Without the mark a follower has received the version before a change, so that claims can rely on it."""

    async def check() -> None:
        truth = Truth(MemoryKube())
        told: dict[str, str] = {}

        def take(change: Change) -> None:
            if change.object is None:
                return
            uid = change.object["metadata"]["uid"]
            moment = "gone" if change.gone else version_of(change.object)
            if not change.skipped:
                at = truth.history[uid].index(moment)
                assert at == 0 or told[uid] == truth.history[uid][at - 1], f"{moment} of {truth.history[uid]}"
            told[uid] = moment

        store = Store(truth.kube, CONFIG_MAPS, on_change=take)
        task = asyncio.create_task(store.run())
        for what, name in steps:
            await truth.step(what, name)
        truth.kube.start()
        await asyncio.sleep(60)
        present = (await truth.kube.list(CONFIG_MAPS)).objects
        assert store.objects == {name_of(each): each for each in present}
        assert all(moment == truth.history[uid][-1] for uid, moment in told.items())
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})

    virtualtime.run(check())


@settings(max_examples=150, deadline=None)
@given(_STEPS, _STEPS, _STEPS)
def test_a_follower_ends_exactly_where_etcd_was_restored_to_before_what_it_has_observed(
    before: list[tuple[str, str]], lost: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    """In whatever state its watch is; where it goes on nothing lacks in the end."""

    async def check() -> None:
        truth, last = Truth(MemoryKube()), "0"

        def take(change: Change) -> None:
            nonlocal last
            if change.listing is not None:
                last = change.listing.resource_version
            elif change.object is not None and not change.skipped:
                last = version_of(change.object)

        store = Store(truth.kube, CONFIG_MAPS, on_change=take)
        task = asyncio.create_task(store.run())
        for what, name in before:
            await truth.step(what, name)
        backup = truth.kube.backup()
        for what, name in lost:
            await truth.step(what, name)
        # A watch that is asked for between the check of the version and the restore is silent, which takes a minute.
        await asyncio.sleep(0.001)
        truth.kube.restore(backup)
        truth.kube.start()
        await asyncio.sleep(15)
        ended = task.done()
        assert ended == (int(last) > backup.version)
        for what, name in after if not ended else ():
            await truth.step(what, name)
        truth.kube.start()
        await asyncio.sleep(60)
        assert task.done() == ended
        if ended:
            assert isinstance(task.exception(), HistoryRewound)
            return
        present = (await truth.kube.list(CONFIG_MAPS)).objects
        assert store.objects == {name_of(each): each for each in present}
        task.cancel()
        await asyncio.wait({task})

    virtualtime.run(check())
