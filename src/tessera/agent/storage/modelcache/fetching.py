"""Fetches in the background, one at a time: in a thread, which ends where another model is more urgent."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import Synced, sync
from tessera.api.kubernetes.times import time_text
from tessera.clients.store import ObjectStore
from tessera.core.storage.models.cachedmodels import Fetching
from tessera.core.storage.models.cacheplan import CachePlan
from tessera.core.storage.models.fetchhistory import FetchHistory, fetch_history, resumed_history
from tessera.core.storage.models.nodemodels import DesiredModel, ObservedModel
from tessera.core.storage.models.refusals import DiskRefusals
from tessera.core.storage.models.retention import TooLittleRoom
from tessera.errors import TesseraError
from tessera.log import Logger, defect

__all__ = ["Fetches", "OpenedSource"]

_PROGRESS_S = 10.0
"""Pause between two reports of progress, each of which is a write to the API server."""
_NO_ROOM = "use a larger disk, fewer models on this node, or a higher priority than those present"


class OpenedSource(NamedTuple):
    """The store of a model, and the digest of the credentials by which it is read; empty for none."""

    store: ObjectStore
    credentials: str = ""


class _RunningFetch:
    """The fetch of one model.

    Args:
        model: the desired model.
        disk: the destination.
        store: the source; closed at the end.
        limits: of the transfer.
        cancellation: ends it.

    """

    def __init__(
        self,
        model: DesiredModel,
        disk: ModelDisk,
        store: ObjectStore,
        *,
        limits: TransferLimits,
        cancellation: Cancellation,
    ) -> None:
        self.model = model
        self.done_bytes, self.total_bytes = 0, 0
        self._disk = disk
        self._store = store
        self._limits = limits
        self._cancellation = cancellation

    async def run(self) -> Synced:
        """Return the fetched revision.

        Raises:
            TooLittleRoom: other models have to make room first.
            TesseraError: it failed; the former revision stays the current one.
            OSError: the disk failed; the former revision stays the current one.
            Canceled: it was canceled; fetched data is kept.

        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Synced] = loop.create_future()

        def finish(synced: Synced | None, error: BaseException | None) -> None:
            if result.done():
                return
            if synced is not None:
                result.set_result(synced)
            elif error is not None:
                result.set_exception(error)

        def work() -> None:
            found, problem = None, None
            try:
                found = self._sync()
            except BaseException as error:  # noqa: BLE001 - raised again by run()
                problem = error
            try:
                loop.call_soon_threadsafe(finish, found, problem)
            except RuntimeError:
                return  # the agent has ended meanwhile

        # Not one of asyncio's threads: the agent's end must not wait for a store that hangs.
        threading.Thread(target=work, name=f"fetch-{self.model.name}", daemon=True).start()
        return await result

    def _sync(self) -> Synced:
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
                require_checksums=model.verification == "Required",
                limits=self._limits,
            )
            return sync(self._store, folder, options, self._progress, self._disk.sharing, self._cancellation)
        finally:
            self._store.close()

    def _progress(self, done: int, total: int) -> None:
        self.done_bytes, self.total_bytes = done, total


class Fetches:
    """The fetches of a node, one at a time, and their results.

    Args:
        disk: the models' folder.
        open_source: opens the source of a model, with its credentials.
        now_s: seconds since 1970.
        wake: called when one has ended.
        log: for starts and ends.
        limits: of each transfer.

    """

    def __init__(
        self,
        *,
        disk: ModelDisk,
        open_source: Callable[[DesiredModel], Awaitable[OpenedSource]],
        now_s: Callable[[], float],
        wake: Callable[[], None],
        log: Logger,
        limits: TransferLimits = TransferLimits(),  # noqa: B008 - it is immutable
    ) -> None:
        self._disk = disk
        self._open_source = open_source
        self._now_s = now_s
        self._wake = wake
        self._log = log
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._running: _RunningFetch | None = None
        self._cancellation = Cancellation()
        """Of the running fetch."""
        self._sampled_s = 0.0
        self._progress = (0, 0)
        self.busy = ""
        """The model being fetched; empty for none."""
        self._histories: dict[str, FetchHistory] = {}

    def follow(self, desired: Mapping[str, DesiredModel], reported: Iterable[ObservedModel]) -> None:
        """Forget models that are not desired any more.

        Args:
            desired: all of the node.
            reported: results of an agent that has ended, of models that this one does not know.

        """
        known = {each.name: resumed_history(each) for each in reported} | self._histories
        self._histories = {name: each for name, each in known.items() if name in desired}

    def report(self, name: str) -> ObservedModel:
        """Return the reported state of a model's fetches."""
        found = (self._histories.get(name) or fetch_history(name)).report
        if name == self.busy:
            if self._running is not None and self._now_s() - self._sampled_s >= _PROGRESS_S:
                self._sampled_s = self._now_s()
                self._progress = self._running.done_bytes, self._running.total_bytes
            done, total = self._progress
            return msgspec.structs.replace(found, state="Fetching", fetched_bytes=done, total_bytes=total)
        return msgspec.structs.replace(found, fetched_bytes=0, total_bytes=0)

    def observed(
        self, desired: Mapping[str, DesiredModel], failing: Collection[str] = (), free_bytes: int = 0
    ) -> Fetching:
        """Return the fetches of the desired models, for the next plan.

        Args:
            desired: all of the node.
            failing: those that an error of the disk keeps from being fetched.
            free_bytes: of the disk, above its reserve.

        """
        histories = {name: self._history(model) for name, model in desired.items()}
        return Fetching(self._now_s(), self.busy, histories, frozenset(failing), free_bytes)

    def decided(
        self, needs: Iterable[str], plan: CachePlan, desired: Mapping[str, DesiredModel], refusals: DiskRefusals
    ) -> None:
        """Report what a plan has decided on models that did not fit.

        Args:
            needs: these models.
            plan: names those for which there is no room.
            desired: all of the node.
            refusals: why the disk removes nothing of the models that the plan names as such, or not all of others.

        """
        for name in needs:
            history = self._history(desired[name])
            if name not in plan.refused:
                others = [other for other, by in plan.displaced.items() if by == name]
                reason = f"model {name}: not enough space: evicting {', '.join(others)}" if others else ""
                self._histories[name] = history.room_made(reason)
                if others:
                    self._log.info("model_needs_room", model=name, of=others)
                continue
            backoff = history.room_backoff(self._now_s())
            if backoff is None:
                missing = f"the disk for models lacks {-(-plan.refused[name] // 2**20)} MiB"
                reasons = "; ".join(refusals.of(plan.stuck.get(name, ())))
                problem = f", and the disk refused to make room: {reasons}" if reasons else f": {_NO_ROOM}"
                reason = f"{self._disk.folder}: {missing}{problem}"
            else:
                fix = f"other models stay until {time_text(backoff.until_s)}, or until its Secret or source changes"
                reason = f"model {name}: its last fetch got no further ({backoff.reason}): {fix}"
            self._warn(name, reason)
            self._histories[name] = history.refused(reason, self._now_s(), plan.refused[name])

    def put_off(self, model: DesiredModel, reason: str) -> None:
        """Report a model as failed, to be fetched again later."""
        self._warn(model.name, reason)
        self._histories[model.name] = self._history(model).put_off(reason, self._now_s())

    def begin(self, model: DesiredModel) -> None:
        """Start a fetch in the background, unless one is running."""
        if not self.busy:
            self.busy, self._cancellation = model.name, Cancellation()
            self._histories[model.name] = self._history(model).begun()
            self._task = asyncio.create_task(self._run(model))

    async def _run(self, model: DesiredModel) -> None:
        self._sampled_s, self._progress = self._now_s(), (0, 0)
        self._log.info("model_fetch", model=model.name, source=model.source)
        try:
            await self._choose_or_fetch(model)
        except Exception as error:  # noqa: BLE001 - an error of one model does not stop the others
            if self._cancellation.is_canceled:  # whatever went wrong then is no failure of the model
                self._log.info("model_fetch_canceled", model=model.name, exc_info=defect(error))
            elif isinstance(error, TooLittleRoom):
                self._histories[model.name] = self._history(model).lacked_room(error.missing_bytes, error.free_bytes)
            else:
                reason = str(error) or type(error).__name__
                if isinstance(error, TesseraError | OSError):
                    reason = self._disk.reason(model.name, error)
                done = self._running.done_bytes if self._running is not None else 0
                self._warn(model.name, reason, error)
                history, now_s = self._history(model), self._now_s()
                # Before its source is opened nothing is known of what comes of room for it.
                ended = history.put_off(reason, now_s) if self._running is None else history.failed(reason, now_s, done)
                self._histories[model.name] = ended
        else:
            self._log.info("model_fetched", model=model.name)
            self._histories[model.name] = self._history(model).fetched(self._now_s())
        finally:
            self.busy, self._running = "", None
            self._wake()

    def _history(self, model: DesiredModel) -> FetchHistory:
        return (self._histories.get(model.name) or fetch_history(model.name)).of(model.identity)

    def _warn(self, name: str, reason: str, error: Exception | None = None) -> None:
        trace = defect(error) if error is not None else None
        self._log.warning("model_not_fetched", model=name, reason=reason, exc_info=trace)

    async def _choose_or_fetch(self, model: DesiredModel) -> None:
        if model.revision:
            there = await asyncio.to_thread(self._disk.choose, model.name, model.revision, model.verification)
            if there:
                return
        store, credentials = await self._open_source(model)
        self._histories[model.name] = self._history(model).opened(credentials)
        self._running = _RunningFetch(model, self._disk, store, limits=self._limits, cancellation=self._cancellation)
        await self._running.run()

    def cancel(self) -> None:
        """End the running fetch soon, in 10 s where its source is silent; fetched data is kept for the next time."""
        self._cancellation.cancel()

    async def close(self) -> None:
        """End at once."""
        self.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
