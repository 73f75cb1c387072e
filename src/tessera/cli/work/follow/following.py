"""Follows a Job until it has ended: why it is pending, its log, its end."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import click

from tessera.api.kubernetes.jobs import job_selection
from tessera.api.kubernetes.jobstates import JobStage, JobState, read_job
from tessera.cli.work.follow.gpuusage import gpu_usage
from tessera.cli.work.follow.joblog import JobLog
from tessera.cli.work.jobreading import events_selection, workloads_selection
from tessera.clients.kube import EVENTS, JOBS, PODS, WORKLOADS, HistoryRewound, Kube, Selection, Store, uid_of
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.errors import Conflict, TesseraError, Unsupported
from tessera.wakeup import WakeUp

__all__ = ["follow_job", "print_log"]

_SILENT_S = 10.0
"""How long the log of a pod may be silent after its command has ended."""
_AGAIN_S = 1.0
"""After which a log is read on whose stream has ended before its command."""


async def print_log(kube: Kube, state: JobState) -> None:
    """Print the output of a Job's command so far.

    Raises:
        TesseraError: it cannot be read.

    """
    async for piece in kube.logs(state.pod, state.namespace, container=state.container):
        click.echo(piece, nl=False)


async def follow_job(
    kube: Kube, name: str, namespace: str, meanwhile: Callable[[JobState], Coroutine[Any, Any, None]] | None = None
) -> int:
    """Report a Job's progress, print its log and its GPU usage, and return the exit code of its command.

    Args:
        kube: the cluster.
        name: of the Job.
        namespace: its namespace.
        meanwhile: replaces printing the log, while the Job runs.

    Raises:
        Conflict: it was deleted, or ended before its command had an exit code; or etcd was restored from a backup.

    """
    observed = _JobWatch(kube, name, namespace)
    shown: _PodOutput | None = None
    reported = ""
    try:
        await observed.synced()
        while True:
            # 1. Report changes: why it is pending, that it runs.
            state = observed.state()
            if (words := _status_line(state)) != reported:
                reported = words
                click.echo(words, err=True)
            # 2. Once it runs, print its log, or do the alternative, and its GPU usage beside that; again for a new pod.
            if state.started and shown is not None and shown.is_of_another(state):
                await shown.drain(state)
                await shown.close()
                shown = None
                continue  # meanwhile the new pod may have ended, too
            if state.started and shown is None:
                wake = observed.changed.set
                shown = _PodOutput(kube, state, meanwhile(state), wake) if meanwhile else _PodLog(kube, state, wake)
            if shown is not None:
                shown.check(state)
            # 3. When it has ended, return the exit code of its command.
            if state.stage.ended:
                if shown is not None:
                    await shown.drain(state)
                return _exit_code(state)
            await observed.changed.wait(_SILENT_S)
    finally:
        if shown is not None:
            await shown.close()
        await _cancel(*observed.following)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait for them; a cancellation of the caller meanwhile is not lost.

    Their own errors were reported, or no longer matter.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _PodOutput:
    """What is shown of one pod of a Job for as long as the pod runs, with its GPU usage.

    Args:
        kube: the cluster.
        state: of the Job.
        output: shows it.
        wake: called when `output` has ended.

    """

    def __init__(
        self, kube: Kube, state: JobState, output: Coroutine[Any, Any, None], wake: Callable[[], None]
    ) -> None:
        self._pod = state.pod
        self._output = asyncio.create_task(output)
        self._output.add_done_callback(lambda _: wake())
        self._usage = asyncio.create_task(_print_usage(kube, state))

    def is_of_another(self, state: JobState) -> bool:
        """Return whether the Job has a newer pod."""
        return state.pod != self._pod

    def check(self, state: JobState) -> None:
        """Note what has become of the pod, and raise the error with which the output failed."""
        del state
        if self._output.done():
            self._output.result()

    async def drain(self, state: JobState) -> None:
        """Wait for what is still to be shown of a pod that has ended, or is replaced: nothing."""

    async def close(self) -> None:
        await _cancel(self._output, self._usage)


class _PodLog(_PodOutput):
    """The log of a pod, which is shown to its end."""

    def __init__(self, kube: Kube, state: JobState, wake: Callable[[], None]) -> None:
        self._over = asyncio.Event()
        """The command has ended."""
        self._again = f"`tessera logs {state.name} -n {state.namespace}` prints what its node has of it"
        self._heard_s = _now_s()
        super().__init__(kube, state, self._print(JobLog(kube, state)), wake)

    def is_of_another(self, state: JobState) -> bool:
        """Return whether the Job has a newer pod, and this one's log has ended, or no more is written to it."""
        return super().is_of_another(state) and (self._output.done() or self._pod not in state.active_pods)

    def check(self, state: JobState) -> None:
        """Note whether the command of this pod has ended, and raise the error with which the log failed."""
        if super().is_of_another(state):
            self._again = f"the Job has a pod after {self._pod}"
            self._over.set()
        if state.stage.ended or state.exit_code is not None:
            self._over.set()
        super().check(state)

    async def drain(self, state: JobState) -> None:
        """Wait for the end of the log, for as long as pieces of it come."""
        self.check(state)
        self._heard_s = _now_s()
        while not self._output.done():
            heard_s = self._heard_s
            await asyncio.wait((self._output,), timeout=heard_s + _SILENT_S - _now_s())
            if self._heard_s == heard_s and not self._output.done():
                click.echo(f"the end of the log did not arrive; {self._again}", err=True)
                return

    async def _print(self, log: JobLog) -> None:
        """Print the log to its end: a stream that began after the end of the command has all that was missing."""
        was_whole, reported = False, set[str]()
        while True:
            over = self._over.is_set()
            try:
                async for piece in log.read():
                    click.echo(piece, nl=False)
                    self._heard_s = _now_s()
                was_whole = True
            except TesseraError as error:
                if over and was_whole:  # nothing was missing, and the pod is gone
                    return
                was_whole = False
                if over or str(error) not in reported:
                    reported.add(str(error))
                    click.echo(f"the log was interrupted ({error}); {self._again if over else 'reading on'}", err=True)
            self._heard_s = _now_s()
            if over:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _AGAIN_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class _JobWatch:
    """A Job and the objects that show its progress, kept up to date by the tasks `following`."""

    def __init__(self, kube: Kube, name: str, namespace: str) -> None:
        self._kube, self._name, self._namespace = kube, name, namespace
        self.changed, self._reported = WakeUp(), set[str]()
        only = Selection(namespace=namespace, fields=(("metadata.name", name),))
        own = Selection(namespace=namespace, labels=job_selection(name))
        self._jobs = Store(kube, JOBS, only, wake=self.changed.set, on_error=self._report_error)
        self._pods = Store(kube, PODS, own, wake=self.changed.set, on_error=self._report_error)
        # Events are optional: the user may not be allowed to read them.
        self._events = Store(kube, EVENTS, events_selection(namespace, name), wake=self.changed.set)
        self._workloads: Store | None = None
        self.following = list[asyncio.Task[None]]()
        for each in (self._jobs, self._pods, self._events):
            self._follow(each)

    def _follow(self, store: Store) -> None:
        task = asyncio.create_task(store.run())
        task.add_done_callback(lambda _: self.changed.set())
        self.following.append(task)

    async def synced(self) -> None:
        await self._jobs.synced()
        await self._pods.synced()

    def state(self) -> JobState:
        """Return the state of the Job; once a queue has suspended it, with Kueue's reason.

        Raises:
            Conflict: it is gone, or is no longer observed.

        """
        for each in self.following:
            if each.done():
                self._check_history(each)
        job = self._jobs.objects.get((self._namespace, self._name))
        if job is None:
            subject = f"job {self._namespace}/{self._name}"
            raise Conflict(subject, found="it was deleted", hint="submit it again")
        workloads = self._workloads.objects.values() if self._workloads else ()
        state = read_job(job, self._pods.objects.values(), self._events.objects.values(), workloads)
        if state.stage is JobStage.QUEUED and self._workloads is None:
            own = workloads_selection(self._namespace, uid_of(job))
            self._workloads = Store(
                self._kube, WORKLOADS, own, wake=self.changed.set, on_error=self._report_queue_error
            )
            self._follow(self._workloads)
        return state

    def _check_history(self, ended: asyncio.Task[None]) -> None:
        """Raise why objects are no longer observed."""
        try:
            ended.result()
        except HistoryRewound as error:
            hint = f"`tessera attach {self._name} -n {self._namespace}` follows the job, if it is still there"
            raise Conflict(error.subject, found=error.cause, hint=hint) from error

    def _report_error(self, error: Exception) -> None:
        if str(error) not in self._reported:
            self._reported.add(str(error))
            click.echo(f"retrying: {error}", err=True)

    def _report_queue_error(self, error: Exception) -> None:
        if isinstance(error, Unsupported):  # without permission the reason is not shown, and nothing is delayed
            found = f"this cluster does not serve {WORKLOADS.api_version}"
            again = f"tessera stop {self._name} -n {self._namespace} and submit it without --queue"
            self._report_error(Unsupported("queues", found=found, hint=f"install Kueue 0.15 or newer, or {again}"))


def _status_line(state: JobState) -> str:
    where = f" on {state.node}" if state.node else ""
    return f"{state.name}: {state.stage.value}{where}{': ' if state.reason else ''}{state.reason}"


async def _print_usage(kube: Kube, state: JobState) -> None:
    """Print the GPU usage of a Job that requests GPUs; nothing if that cannot be known."""
    if all(resource.startswith(MODEL_RESOURCE) for resource, _ in state.requests):
        return
    async for words in gpu_usage(kube, state):
        click.echo(f"{state.name}: uses {words}", err=True)


def _exit_code(state: JobState) -> int:
    if state.stage is JobStage.SUCCEEDED:
        return 0
    if state.exit_code is None:
        log = f"see `tessera logs {state.name} -n {state.namespace}`"
        hint = log if state.started else "correct that, and submit it again"
        raise Conflict(f"job {state.namespace}/{state.name}", found=state.reason.rstrip(".") or "failed", hint=hint)
    return state.exit_code
