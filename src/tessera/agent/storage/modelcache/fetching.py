"""Fetches in the background, one at a time: in a thread, which ends when the model is no longer desired."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.sync import Synced, SyncOptions, sync
from tessera.clients.store import ObjectStore
from tessera.core.storage.models.cache import CachedModel, DesiredModel, ObservedModel, next_fetch, victims
from tessera.core.storage.models.cacheplan import ModelOnNode, deferred_fetches, waiting_for_room
from tessera.core.storage.models.retention import Kept, freed_bytes
from tessera.errors import TesseraError, Unavailable
from tessera.log import Logger, defect

__all__ = ["Fetches", "Neighbor"]

_PROGRESS_S = 10.0
"""Pause between two reports of progress, each of which is a write to the API server."""


class Displaces(TesseraError):
    """There is room only if other models, which new pods get now, are withdrawn.

    Args:
        models: their names.

    """

    def __init__(self, subject: str, models: Iterable[str]) -> None:
        self.models = tuple(dict.fromkeys(models))
        super().__init__(subject, found=f"the disk is full of {', '.join(self.models)}", hint="space is being freed")


class _Abandoned(Exception):
    """The model is no longer desired."""


class Neighbor(msgspec.Struct, frozen=True):
    """A model on the disk, when another one needs room.

    Args:
        desired: its desired state; None if it is no longer desired.
        found: its revisions, and those in use.

    """

    desired: DesiredModel | None
    found: ModelOnNode


Neighbors = Callable[[], Mapping[str, Neighbor]]


class _Fetch:
    """The fetch of one model.

    Args:
        model: the desired model.
        disk: the destination.
        store: the source; closed at the end.
        neighbors: the other models on the disk.
        limits: of the transfer.

    """

    def __init__(
        self, model: DesiredModel, disk: ModelDisk, store: ObjectStore, neighbors: Neighbors, limits: TransferLimits
    ) -> None:
        self.model = model
        self.done_bytes, self.total_bytes = 0, 0
        self._disk = disk
        self._store = store
        self._neighbors = neighbors
        self._limits = limits
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """End it soon; fetched data is kept for the next time."""
        self._abandoned.set()

    async def run(self) -> Synced:
        """Return the fetched revision.

        Raises:
            Displaces: other models have to go first.
            TesseraError: it failed; the former revision stays the current one.

        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Synced] = loop.create_future()

        def settle(found: Synced | None, error: BaseException | None) -> None:
            if result.done():
                return
            if found is not None:
                result.set_result(found)
            elif error is not None:
                result.set_exception(error)

        def work() -> None:
            found, problem = None, None
            try:
                found = self._fetch()
            except BaseException as error:  # noqa: BLE001 - raised again by run()
                problem = error
            try:
                loop.call_soon_threadsafe(settle, found, problem)
            except RuntimeError:
                return  # the agent has ended meanwhile

        # Not one of asyncio's threads: the agent's end must not wait for a store that hangs.
        threading.Thread(target=work, name=f"fetch-{self.model.name}", daemon=True).start()
        try:
            return await result
        except _Abandoned as error:
            raise Unavailable(
                self.model.name, found="no ModelCache or pod needs it any more", hint="its fetching ends"
            ) from error
        except OSError as error:
            raise Unavailable(
                str(self._disk.folder),
                found=error.strerror or str(error),
                hint="give --model-dir, a disk that can be written",
            ) from error
        finally:
            self.abandon()

    def _fetch(self) -> Synced:
        model = self.model
        try:
            folder = self._disk.claim(model.name)
            options = SyncOptions(
                keep=model.keep,
                pack=model.pack,
                include=model.include,
                exclude=model.exclude,
                reserve_bytes=self._disk.reserve_bytes,
                revision=model.revision,
                limits=self._limits,
            )
            return sync(self._store, folder, options, self._progress, self._make_room, self._disk.sharing)
        finally:
            self._store.close()

    def _progress(self, done: int, total: int) -> None:
        self.done_bytes, self.total_bytes = done, total
        if self._abandoned.is_set():
            raise _Abandoned

    def _make_room(self, needed: int, own: list[Kept]) -> None:
        """Remove other models' revisions to make room, or say which must be withdrawn from new pods."""
        missing = needed - self._disk.free_bytes() - freed_bytes(each for each in own if not each.protected)
        if missing <= 0:
            return
        others = [self._cached(name, each) for name, each in self._neighbors().items() if name != self.model.name]
        this = CachedModel(name=self.model.name, current="", kept=(), priority=self.model.priority)
        chosen = victims(this, others, missing_bytes=missing, subject=str(self._disk.folder))
        for victim in chosen:
            if not victim.current:
                self._disk.evict(victim.model, victim.revision)
        if displaced := [victim.model for victim in chosen if victim.current]:
            raise Displaces(f"model {self.model.name}", displaced)

    def _cached(self, name: str, each: Neighbor) -> CachedModel:
        folder = self._disk.model(name)
        revisions = folder.revisions()
        return CachedModel(
            name=name,
            current=each.found.there.current,
            kept=tuple(folder.kept(revisions)),
            used=each.found.used.union(one.revision for one in revisions if one.in_use),
            priority=each.desired.priority if each.desired else self.model.priority - 1,
            pinned=each.desired is not None and each.desired.pinned,
        )


class Fetches:
    """The fetches of a node, one at a time, and their results.

    Args:
        disk: the models' folder.
        open_store: returns the store of a model, with its credentials.
        neighbors: returns the models on the disk.
        now_s: seconds since 1970.
        wake: called when one has ended.
        log: for starts and ends.
        limits: of each transfer.

    """

    def __init__(  # noqa: PLR0913 - one more than the budget
        self,
        *,
        disk: ModelDisk,
        open_store: Callable[[DesiredModel], Awaitable[ObjectStore]],
        neighbors: Neighbors,
        now_s: Callable[[], float],
        wake: Callable[[], None],
        log: Logger,
        limits: TransferLimits = TransferLimits(),  # noqa: B008 - it is immutable
    ) -> None:
        self._disk = disk
        self._open_store = open_store
        self._neighbors = neighbors
        self._now_s = now_s
        self._wake = wake
        self._log = log
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._fetch: _Fetch | None = None
        self._sampled_s = 0.0
        self._progress = (0, 0)
        self.busy = ""
        """The model being fetched; empty for none."""
        self.reports: dict[str, ObservedModel] = {}
        """Result of the last fetch of each model, also of the former agent's."""
        self.displaced: Mapping[str, str] = {}
        """Models that make room, each with the one that they make it for."""

    def report(self, name: str) -> ObservedModel:
        """Return the reported state of a model's fetches."""
        found = self.reports.get(name, ObservedModel(name=name))
        if name == self.busy:
            if self._fetch is not None and self._now_s() - self._sampled_s >= _PROGRESS_S:
                self._sampled_s = self._now_s()
                self._progress = self._fetch.done_bytes, self._fetch.total_bytes
            done, total = self._progress
            return msgspec.structs.replace(found, state="Fetching", fetched_bytes=done, total_bytes=total)
        state = "Missing" if found.state == "Fetching" else found.state  # of an agent that has ended
        return msgspec.structs.replace(found, state=state, fetched_bytes=0, total_bytes=0)

    def begin(
        self, desired: Mapping[str, DesiredModel], offered: Mapping[str, str], found: Mapping[str, ModelOnNode]
    ) -> None:
        """Start the next fetch in the background, unless one is running.

        Args:
            desired: in the order of fetching.
            offered: revisions that new pods get, by model.
            found: the models on the disk.

        """
        deferred = deferred_fetches(self.displaced, found)
        candidates = [each for name, each in desired.items() if name not in deferred]
        seen = {name: msgspec.structs.replace(self.report(name), revision=offered.get(name, "")) for name in desired}
        model = None if self.busy else next_fetch(candidates, seen, self._now_s())
        if model is not None:
            self.busy = model.name
            self._task = asyncio.create_task(self._run(model))
            return
        needed = waiting_for_room(self.displaced, found)
        if not self.busy and needed != self.displaced:
            # Nothing is fetched into the room that was made: the models that made it are fetched again.
            self.displaced = needed
            self._wake()

    async def _run(self, model: DesiredModel) -> None:
        former = self.reports.get(model.name, ObservedModel(name=model.name))
        self._sampled_s, self._progress = self._now_s(), (0, 0)
        self._log.info("model_fetch", model=model.name, source=model.source)
        try:
            await self._fetched(model)
        except Displaces as error:
            self.displaced = {**self.displaced, **dict.fromkeys(error.models, model.name)}
            self.reports[model.name] = msgspec.structs.replace(former, state="Missing", reason=str(error))
            self._log.info("model_needs_room", model=model.name, of=error.models)
        except Exception as error:  # noqa: BLE001 - one model keeps none of the others from being fetched
            again = former.failures if former.identity == model.identity else 0
            reason = str(error) or type(error).__name__
            self._log.warning("model_not_fetched", model=model.name, reason=reason, exc_info=defect(error))
            self._end(model, former, "Failed", failed_s=self._now_s(), failures=again + 1, reason=reason)
        else:
            self._log.info("model_fetched", model=model.name)
            self._end(model, former, "Ready", checked_s=self._now_s(), failed_s=0.0, failures=0, reason="")
        finally:
            self.busy, self._fetch = "", None
            self._wake()

    def _end(self, model: DesiredModel, former: ObservedModel, state: str, **fields: object) -> None:
        """Note how a fetch ended, for which no model needs to make room any more."""
        rows = {**msgspec.structs.asdict(former), "state": state, "identity": model.identity, **fields}
        self.reports[model.name] = msgspec.convert(rows, ObservedModel)
        self.displaced = {name: by for name, by in self.displaced.items() if by != model.name}

    async def _fetched(self, model: DesiredModel) -> None:
        if model.revision:
            there = await asyncio.to_thread(self._disk.choose, model.name, model.revision)
            if there:
                return
        store = await self._open_store(model)
        self._fetch = _Fetch(model, self._disk, store, self._neighbors, self._limits)
        await self._fetch.run()

    def abandon(self) -> None:
        """End the running fetch soon; fetched data is kept for the next time."""
        if self._fetch is not None:
            self._fetch.abandon()

    async def close(self) -> None:
        """End at once."""
        self.abandon()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
