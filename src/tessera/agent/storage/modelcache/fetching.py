"""Fetches in the background, one at a time: in a thread, which ends where another model is more urgent."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import Synced, sync
from tessera.api.kubernetes.times import time_text
from tessera.clients.store import ObjectStore
from tessera.core.storage.models.cacheplan import CachePlan, Fetching, RoomBackoff, room_backoff
from tessera.core.storage.models.nodemodels import DesiredModel, ObservedModel
from tessera.core.storage.models.retention import TooLittleRoom
from tessera.errors import Unavailable
from tessera.log import Logger, defect

__all__ = ["Fetches"]

_PROGRESS_S = 10.0
"""Pause between two reports of progress, each of which is a write to the API server."""
_FIXES = {
    errno.EIO: "replace the disk; the kernel's log names it",
    errno.ENOSPC: "free space or inodes on this disk",
    errno.EDQUOT: "raise the quota of this folder",
    errno.EMFILE: "raise the agent's limit of open files",
}
"""What to do about an error of the disk."""
_NO_ROOM = "use a larger disk, fewer models on this node, or a higher priority than those present"


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
        try:
            return await result
        except OSError as error:
            fix = _FIXES.get(error.errno or 0, "give --model-dir, a disk that can be written")
            raise Unavailable(str(self._disk.folder), found=error.strerror or str(error), hint=fix) from error

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
        open_store: returns the store of a model, with its credentials.
        now_s: seconds since 1970.
        wake: called when one has ended.
        log: for starts and ends.
        limits: of each transfer.

    """

    def __init__(
        self,
        *,
        disk: ModelDisk,
        open_store: Callable[[DesiredModel], Awaitable[ObjectStore]],
        now_s: Callable[[], float],
        wake: Callable[[], None],
        log: Logger,
        limits: TransferLimits = TransferLimits(),  # noqa: B008 - it is immutable
    ) -> None:
        self._disk = disk
        self._open_store = open_store
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
        self.reports: dict[str, ObservedModel] = {}
        """Result of the last fetch of each model, also of the former agent's."""
        self.needs: dict[str, int] = {}
        """Models that did not fit, with the bytes that they lacked, until the next plan decides on them."""
        self._backoffs: dict[str, RoomBackoff] = {}
        self._refused: set[str] = set()
        """Models for which there was too little room, until they are fetched again."""
        self._with_room: set[str] = set()
        """Models for which room was made, and that were not fetched since."""
        self._most_bytes: dict[str, tuple[str, int]] = {}
        """Most bytes that a failed fetch of each model had, with the model's identity then."""

    def report(self, name: str) -> ObservedModel:
        """Return the reported state of a model's fetches."""
        found = self.reports.get(name, ObservedModel(name=name))
        if name == self.busy:
            if self._running is not None and self._now_s() - self._sampled_s >= _PROGRESS_S:
                self._sampled_s = self._now_s()
                self._progress = self._running.done_bytes, self._running.total_bytes
            done, total = self._progress
            return msgspec.structs.replace(found, state="Fetching", fetched_bytes=done, total_bytes=total)
        state = "Missing" if found.state == "Fetching" else found.state  # of an agent that has ended
        return msgspec.structs.replace(found, state=state, fetched_bytes=0, total_bytes=0)

    def observed(self, desired: Iterable[str]) -> Fetching:
        """Return the fetches of these models, for the next plan."""
        reports = {name: self.report(name) for name in desired}
        return Fetching(
            now_s=self._now_s(),
            running=self.busy,
            reports=reports,
            needs=dict(self.needs),
            room_backoffs=dict(self._backoffs),
            refused=frozenset(self._refused),
        )

    def decided(self, needs: Iterable[str], plan: CachePlan, desired: Mapping[str, DesiredModel]) -> None:
        """Report what a plan has decided on models that did not fit.

        Args:
            needs: these models.
            plan: names those for which there is no room.
            desired: all of the node.

        """
        for name in needs:
            self.needs.pop(name, None)
            if name in plan.refused:
                self._refused.add(name)
                backoff = room_backoff(desired[name], self.observed(desired))
                if backoff is None:
                    missing = f"the disk for models lacks {-(-plan.refused[name] // 2**20)} MiB"
                    reason = f"{self._disk.folder}: {missing}: {_NO_ROOM}"
                else:
                    fix = f"other models stay until {time_text(backoff.until_s)}"
                    reason = f"model {name}: its last fetch brought nothing ({backoff.reason}): {fix}"
                self.refuse(desired[name], reason)
                continue
            self._with_room.add(name)
            if others := [other for other, by in plan.displaced.items() if by == name]:
                reason = f"model {name}: not enough space: evicting {', '.join(others)}"
                self.reports[name] = msgspec.structs.replace(self.report(name), state="Missing", reason=reason)
                self._log.info("model_needs_room", model=name, of=others)

    def refuse(self, model: DesiredModel, reason: str, error: Exception | None = None) -> None:
        """Report a model as failed, to be fetched again later."""
        former = self.reports.get(model.name, ObservedModel(name=model.name))
        again = former.failures if former.identity == model.identity else 0
        trace = defect(error) if error is not None else None
        self._log.warning("model_not_fetched", model=model.name, reason=reason, exc_info=trace)
        self._end(model, former, "Failed", failed_s=self._now_s(), failures=again + 1, reason=reason)

    def begin(self, model: DesiredModel) -> None:
        """Start a fetch in the background, unless one is running."""
        if not self.busy:
            self.busy, self._cancellation = model.name, Cancellation()
            self._task = asyncio.create_task(self._run(model))

    async def _run(self, model: DesiredModel) -> None:
        former = self.reports.get(model.name, ObservedModel(name=model.name))
        self._sampled_s, self._progress = self._now_s(), (0, 0)
        self._refused.discard(model.name)
        self._log.info("model_fetch", model=model.name, source=model.source)
        try:
            await self._choose_or_fetch(model)
        except Exception as error:  # noqa: BLE001 - one model keeps none of the others from being fetched
            if self._cancellation.is_canceled:  # whatever went wrong then is no failure of the model
                self._log.info("model_fetch_canceled", model=model.name, exc_info=defect(error))
            elif isinstance(error, TooLittleRoom):
                self.needs[model.name] = error.missing_bytes
            else:
                self._note_failure(model, str(error) or type(error).__name__)
                self.refuse(model, str(error) or type(error).__name__, error)
        else:
            self._log.info("model_fetched", model=model.name)
            self._backoffs.pop(model.name, None)
            self._most_bytes.pop(model.name, None)
            self._end(model, former, "Ready", checked_s=self._now_s(), failed_s=0.0, failures=0, reason="")
        finally:
            self.busy, self._running = "", None
            self._wake()

    def _note_failure(self, model: DesiredModel, reason: str) -> None:
        """Back off from making room for a model that failed in room made for it, unless it brought further bytes."""
        former = self._backoffs.get(model.name)
        again = former.count if former is not None and former.identity == model.identity else 0
        done = self._running.done_bytes if self._running is not None else 0
        identity, most = self._most_bytes.get(model.name, (model.identity, 0))
        if done > (most if identity == model.identity else 0):
            self._most_bytes[model.name] = model.identity, done
            self._backoffs.pop(model.name, None)
        elif model.name in self._with_room:
            self._backoffs[model.name] = RoomBackoff(model.identity, again + 1, self._now_s(), reason)
        self._with_room.discard(model.name)

    def _end(self, model: DesiredModel, former: ObservedModel, state: str, **fields: object) -> None:
        """Note how a fetch ended."""
        rows = {**msgspec.structs.asdict(former), "state": state, "identity": model.identity, **fields}
        self.reports[model.name] = msgspec.convert(rows, ObservedModel)

    async def _choose_or_fetch(self, model: DesiredModel) -> None:
        if model.revision:
            there = await asyncio.to_thread(self._disk.choose, model.name, model.revision, model.verification)
            if there:
                return
        store = await self._open_store(model)
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
