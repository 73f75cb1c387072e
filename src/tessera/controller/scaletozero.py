"""ModelServers that scale to zero: the step between zero and one replica, which their autoscaler does not take.

The number of replicas needed comes from `external.metrics.k8s.io`, as for the HorizontalPodAutoscaler. Without an
answer nothing is scaled to zero, and a server that is woken still gets a replica.
"""

import asyncio
import datetime as dt
import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from tessera.api.kubernetes.metrics.values import read_desired_replicas
from tessera.clients.kube import (
    DEPLOYMENTS,
    DESIRED_REPLICAS,
    Forbidden,
    Kube,
    Object,
    Selection,
    version_of,
)
from tessera.core.serving.annotations import SERVER_LABEL
from tessera.core.serving.autoscaling.scaletozero import ReplicasMetric, is_awake, step
from tessera.core.serving.modelserver import ModelServer
from tessera.core.serving.serverstatus import missing_rights
from tessera.errors import Conflict, TesseraError
from tessera.log import logger

__all__ = ["ZeroScaler"]

_DEADLINE_S: Final = 5.0
_NUMBER: Final = re.compile(r"\d+")
_LEFT: Final = "nothing is scaled to zero while the number of needed replicas is unknown"

Name = tuple[str, str]
"""Namespace and name."""


class _Known(msgspec.Struct, frozen=True):
    """What is known about a server."""

    uid: str
    read_s: float
    """When it was last read, on the loop's clock."""
    desired: ReplicasMetric | None = None
    problem: str = ""
    """Why the number of replicas needed is unknown; empty where it is known."""
    zero_s: float | None = None
    """When the metric of the present replicas first was zero."""


class ZeroScaler:
    """Scales servers to zero and to one replica, by what is known about them.

    Args:
        kube: the Kubernetes API.
        now: the wall clock.
        pause_s: between two reads for one server; it is measured every 15 s.

    """

    def __init__(self, kube: Kube, now: Callable[[], dt.datetime], pause_s: float) -> None:
        self._kube = kube
        self._now = now
        self._pause_s = pause_s
        self._log = logger()
        self._known: dict[Name, _Known] = {}

    async def read(self, servers: Iterable[ModelServer]) -> None:
        """Read the replicas these servers need, where the last read is old; forget all other servers."""
        named = {(each.namespace, each.name): each for each in servers}
        self._known = {
            name: known for name, known in self._known.items() if name in named and known.uid == named[name].uid
        }
        now_s = asyncio.get_running_loop().time()
        due = [
            each
            for name, each in named.items()
            if name not in self._known or now_s - self._known[name].read_s >= self._pause_s
        ]
        found = await asyncio.gather(*(self._read(each) for each in due))
        for each, (desired, problem) in zip(due, found, strict=True):
            name = each.namespace, each.name
            former = self._known.get(name, _Known(uid=each.uid, read_s=now_s))
            # "61 s ago" and "76 s ago" are no news: the status stays the same.
            same = _NUMBER.sub("", problem) == _NUMBER.sub("", former.problem)
            shown_problem = former.problem if same else problem
            self._known[name] = msgspec.structs.replace(former, read_s=now_s, desired=desired, problem=shown_problem)

    async def _read(self, server: ModelServer) -> tuple[ReplicasMetric | None, str]:
        selection = Selection(namespace=server.namespace, labels=((SERVER_LABEL, server.name),))
        subject = f"{DESIRED_REPLICAS.plural} of {server.namespace}/{server.name}"
        try:
            async with asyncio.timeout(_DEADLINE_S):
                listing = await self._kube.list(DESIRED_REPLICAS, selection)
            desired = read_desired_replicas(listing.objects, subject)
        except Forbidden as error:
            return None, missing_rights(server.namespace, str(error))
        except TimeoutError:
            return None, f"{subject}: no answer in {_DEADLINE_S:g} s"
        except TesseraError as error:
            return None, str(error)
        return desired, "" if desired is not None else f"{subject}: none"

    async def step(self, server: ModelServer, deployment: Object) -> tuple[str, ...]:
        """Scale to zero or to one; return the message for the status.

        Args:
            server: one that may scale to zero.
            deployment: its Deployment, as last observed.

        Raises:
            TesseraError: the Deployment cannot be scaled.

        """
        name = server.namespace, server.name
        known = self._known.get(name)
        if known is None:
            return ()  # the next pass reads it again
        replicas = (deployment.get("spec") or {}).get("replicas", 1)
        idle_s, now_s = server.spec.autoscaling.idle_seconds, self._now().timestamp()
        found = step(known.zero_s, replicas, known.desired, woken=is_awake(server.woken_s, idle_s, now_s))
        self._known[name] = msgspec.structs.replace(known, zero_s=found.zero_s)
        if found.replicas is not None:
            patch = {"metadata": {"resourceVersion": version_of(deployment)}, "spec": {"replicas": found.replicas}}
            try:
                await self._kube.patch(DEPLOYMENTS, server.name, patch, namespace=server.namespace)
            except Conflict:
                return ()  # it changed meanwhile; the next pass observes that
            event = "model_server_woken" if found.replicas else "model_server_scaled_to_zero"
            self._log.info(event, name=server.name, namespace=server.namespace)
        return (f"{_LEFT}: {known.problem}",) if known.problem else ()
