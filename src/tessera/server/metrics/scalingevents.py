"""The log and the events of decisions about replicas: each is written once, when it changes."""

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from tessera.api.tessera.node.nodereports import Report, Subject
from tessera.clients.kube import Kube, Object, name_of, record_event, uid_of
from tessera.core.serving.annotations import KIND
from tessera.core.serving.autoscaling.decisions import ScalingDecision, report_of
from tessera.core.serving.autoscaling.serverfacts import ModelDeployment
from tessera.errors import Unavailable
from tessera.log import Logger
from tessera.server.metrics.published import MeasuredServer

__all__ = ["ScalingEvents", "ServerName"]

ServerName = tuple[str, str]
"""Namespace and name."""
_AT_ONCE: Final = 8
_WITHIN_S: Final = 5.0
"""Events not written by then are written in the next pass."""


class _Reported(msgspec.Struct):
    """What was reported of a server."""

    logged: tuple[int | None, bool]
    """The last decision, and whether it was for lack of valid input."""
    uids: set[str] = set()
    """Objects that have its event."""


class _DueEvent(msgspec.Struct, frozen=True):
    """An event that is not written yet."""

    of: _Reported
    subject: Subject
    report: Report


class ScalingEvents:
    """Reports each decision that differs from the last one.

    Args:
        kube: the Kubernetes API.
        log: records decisions.
        now_s: the seconds since 1970.
        on_error: is called with what went wrong.

    """

    def __init__(
        self, kube: Kube, log: Logger, now_s: Callable[[], float], on_error: Callable[[BaseException], None]
    ) -> None:
        self._kube = kube
        self._log = log
        self._now_s = now_s
        self._on_error = on_error
        self._reported: dict[ServerName, _Reported] = {}

    async def report(
        self,
        measured: Mapping[ServerName, MeasuredServer],
        deployments: Mapping[ServerName, tuple[Object, ModelDeployment]],
    ) -> None:
        """Report what changed about each server that has a Deployment; others are forgotten.

        Events are written some at a time and for a few seconds: the next pass writes the rest. Decisions do not wait.
        """
        self._reported = {server: each for server, each in self._reported.items() if server in measured}
        due = list[_DueEvent]()
        for server in sorted(measured.keys() & deployments.keys()):
            try:
                due += self._due(server, measured[server], *deployments[server])
            except Exception as error:  # noqa: BLE001 a defect about one server must not stop the others
                self._on_error(error)
        turns = asyncio.Semaphore(_AT_ONCE)
        try:
            async with asyncio.timeout(_WITHIN_S):
                await asyncio.gather(*(self._write(each, turns) for each in due))
        except TimeoutError:
            found = f"not all of {len(due)} were written in {_WITHIN_S:g} s"
            self._on_error(Unavailable("events about model servers", found=found, hint="the next pass writes the rest"))

    def _due(
        self, server: ServerName, measured: MeasuredServer, deployment: Object, read: ModelDeployment
    ) -> Iterator[_DueEvent]:
        """Log a decision that differs from the last one; yield its events that are not written yet.

        They are about the Deployment and the ModelServer that it is of.
        """
        decision = measured.decision
        found = self._reported.get(server)
        if found is None or found.logged != (decision.replicas, decision.bad):
            found = self._reported[server] = _Reported((decision.replicas, decision.bad))
            self._log_decision(server, decision)
        if (event := report_of(measured.facts, decision)) is None:
            return
        report = Report(reason=event.reason, message=event.message, warning=event.warning)
        namespace, name = name_of(deployment)
        subjects = [Subject(kind="Deployment", name=name, namespace=namespace, uid=uid_of(deployment), node="")]
        if read.owner:
            subjects.append(Subject(kind=KIND, name=read.owner, namespace=namespace, uid=read.owner_uid, node=""))
        yield from (_DueEvent(found, each, report) for each in subjects if each.uid not in found.uids)

    def _log_decision(self, server: ServerName, decision: ScalingDecision) -> None:
        fields = {"namespace": server[0], "server": server[1], "replicas": decision.replicas}
        if decision.bad:
            self._log.warning("replicas_not_decided", reason=decision.reason, **fields)
        else:
            self._log.info("replicas_decided", reason=decision.reason, **fields)

    async def _write(self, due: _DueEvent, turns: asyncio.Semaphore) -> None:
        now = dt.datetime.fromtimestamp(self._now_s(), dt.UTC)
        try:
            async with turns:
                await record_event(self._kube, due.subject, due.report, now, component="tessera-metrics")
        except Exception as error:  # noqa: BLE001 a defect about one event must not stop the others
            self._on_error(error)
        else:
            due.of.uids.add(due.subject.uid)
