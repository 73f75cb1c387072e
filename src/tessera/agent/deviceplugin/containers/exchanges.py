"""The answers of `Allocate` for shares, and exchanges of assignments until they match what each pod has.

`Allocate` names no pod, so without CDI one may be answered with the assignment of another of the same size
(docs/decisions/0009-pod-identity-at-prestart.md).
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from tessera.agent.deviceplugin.containers.answersfile import read_answers, write_answers
from tessera.agent.deviceplugin.containers.assignedpods import AssignedPods
from tessera.agent.pods.podsview import PodsInView
from tessera.api.tessera.node.agentfiles import Answers
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import Answer, AssignedRequest, Units, reconcile
from tessera.core.workload.resources import SHARE_RESOURCES
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger

__all__ = ["Exchanges"]

_UNHELD_S = 60.0
"""An answer without a holder for this long was for a pod that the kubelet rejected for another reason."""


class Exchanges:
    """Keeps answers until the kubelet's record shows their holders, and corrects the assignments to match.

    Args:
        view: the pods of this node.
        pods: the assignments that count.
        log: for exchanges.
        answers_file: keeps answers across a restart of the agent between two calls; None keeps them in memory.
        clock_s: a monotonic clock.

    """

    def __init__(
        self, view: PodsInView, pods: AssignedPods, log: Logger, answers_file: Path | None, clock_s: Callable[[], float]
    ) -> None:
        self._view = view
        self._pods = pods
        self._log = log
        self._answers_file = answers_file
        self._clock_s = clock_s
        remembered = read_answers(answers_file, log)
        self._answers = {each.units: each for each in remembered.answers}
        self._exchanges = {each.request.key: each for each in remembered.exchanges}
        """Corrections that are decided and not written yet."""
        self._allocated = frozenset[Units]()
        """Answers that had a holder when the kubelet's record was last read."""
        self._unheld_s: dict[Units, float] = {}
        self.mistaken = frozenset[RequestKey]()
        """Containers that the last `repair` found with devices of another size or kind than theirs."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The unused answers."""
        return tuple(self._answers.values())

    def answer_for(self, units: Units) -> Answer | None:
        """Return the answer for these units."""
        return self._answers.get(units)

    def remember(self, answer: Answer) -> None:
        """Keep an answer; one that says which devices it is of also across restarts."""
        self._answers[answer.units] = answer
        if answer.fixed:
            self._write()

    def use(self, units: Units) -> None:
        """Forget the answer for these units: a container was started with it."""
        self._drop([units])

    def forget(self, known: frozenset[Units], units: Units) -> None:
        """Forget answers for units that were lost or are allocated anew, or without a holder whose pod is gone."""
        self._forget_lost(known)
        waiting, (resource, ids) = {request.key for request in self.assigned_requests()}, units
        self._drop(
            [
                each.units
                for each in self.answers
                if (each.key.resource == resource and each.ids & ids)
                or (each.units not in known and each.key not in waiting)
            ]
        )

    def forget_unheld(self, known: frozenset[Units]) -> None:
        """Forget answers that were lost, or without a holder for a minute.

        Args:
            known: the kubelet's record, from `recorded`.

        """
        self._forget_lost(known)
        now_s = self._clock_s()
        self._unheld_s = {units: self._unheld_s.get(units, now_s) for units in self._answers if units not in known}
        self._drop([units for units, since_s in self._unheld_s.items() if now_s - since_s > _UNHELD_S])

    def _forget_lost(self, known: frozenset[Units]) -> None:
        """Forget answers whose holder the kubelet's record has no more: its pod has ended, or is admitted again."""
        self._drop(self._allocated - known)
        self._allocated = known.intersection(self._answers)

    async def recorded(self) -> frozenset[Units]:
        """Return the ids that the kubelet has recorded together, also for pods that the watch does not show yet.

        Raises:
            Unavailable: its record cannot be read.

        """
        return frozenset((each.resource, frozenset(each.device_ids)) for each in await self._view.allocated())

    async def unobserved(self) -> frozenset[str]:
        """Return the UIDs of pods with units in the kubelet's record that the watch does not show.

        Raises:
            Unavailable: its record cannot be read.

        """
        given = {each.uid for each in await self._view.allocated() if each.resource in SHARE_RESOURCES}
        return frozenset(given - self._view.by_uid().keys())

    async def require_own(self, request: AssignedRequest, answers: tuple[Answer, ...]) -> None:
        """Check that an init container of a request's pod was not answered with another pod's devices.

        It has the same ids as the container that starts after it, and when they start nothing tells them apart.

        Args:
            request: that is about to be answered.
            answers: those before what the kubelet allocates anew was forgotten.

        Raises:
            Conflict: it was.
            Unavailable: the kubelet's record cannot be read.

        """
        every = await self._view.devices_of_all_containers()
        own = {(each.resource, frozenset(each.device_ids)) for each in every if each.uid == request.uid}
        for each in answers:
            if each.fixed and each.units in own and each.key[:2] != request.key[:2]:
                raise Conflict(
                    str(request.key),
                    found=f"an init container of its pod was answered with the devices of {each.key}",
                    hint="recreate the pod, or use deviceListStrategy cdi-cri, which cannot mistake pods",
                )

    def assigned_requests(self) -> tuple[AssignedRequest, ...]:
        """Return the assignments of this node's pods after all exchanges, written or not."""
        if not self._exchanges:
            return self._pods.assigned_requests()
        return tuple(map(self._exchanged, self._pods.assigned_requests()))

    def _exchanged(self, request: AssignedRequest) -> AssignedRequest:
        """Return a request after an exchange of its pod, not of an earlier pod with the same name."""
        known = self._exchanges.get(request.key)
        ours = known is not None and known.request.uid == request.uid
        return msgspec.structs.replace(request, shares=known.shares) if known is not None and ours else request

    async def repair(self, allocated: tuple[KubeletAllocation, ...]) -> dict[RequestKey, TesseraError]:
        """Correct the assignments to match what holders were answered; return those that cannot be corrected, and why.

        Containers of these are not started; the others go on.
        """
        # 1. Decide the exchanges, and keep them across restarts: two writes make one exchange.
        found = reconcile(self.assigned_requests(), allocated, [each for each in self.answers if each.fixed])
        for each in found.corrections:
            self._exchanges[each.request.key] = each
            self._log.info("assignment_exchanged", pod=str(each.request.key), gpus=[share.gpu for share in each.shares])
        if found.corrections:
            self._write()
        self.mistaken = found.mistaken
        # 2. Write them on the pods that exist.
        refused: dict[RequestKey, TesseraError] = {key: _mistaken(key, why) for key, why in found.refused}
        unobserved = await self.unobserved() if self._exchanges else frozenset[str]()
        for key, each in tuple(self._exchanges.items()):
            if each.request.uid in unobserved:
                refused[key] = _unwritten(key)
                continue
            try:
                await self._pods.correct(each)
            except TesseraError as error:
                self._log.warning("assignment_not_exchanged", pod=str(key), reason=str(error))
                why = f"its assignment cannot be corrected: {error.found}"
                refused[key] = error if isinstance(error, Unavailable) else _mistaken(key, why)
            else:
                self._exchanges.pop(key, None)
        return refused

    def _drop(self, forgotten: Iterable[Units]) -> None:
        """Forget answers, those that are kept across restarts also on the disk."""
        dropped = [self._answers.pop(units, None) for units in forgotten]
        if any(each is not None and each.fixed for each in dropped):
            self._write()

    def _write(self) -> None:
        kept = Answers(answers=self.answers, exchanges=tuple(self._exchanges.values()))
        write_answers(self._answers_file, kept, self._log)


def _unwritten(key: RequestKey) -> Unavailable:
    return Unavailable(
        str(key),
        found="its assignment has to be corrected, and the API server shows no pod of this UID",
        hint="the kubelet tries again",
    )


def _mistaken(key: RequestKey, why: str) -> Conflict:
    advice = "delete and recreate the pod, or use deviceListStrategy cdi-cri, which cannot mistake pods"
    return Conflict(str(key), found=why, hint=advice)
