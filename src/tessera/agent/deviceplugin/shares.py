"""Shares by assignment: which pod an allocation is for, and what its container gets.

Where the runtime is told by CDI, `Allocate` answers a name, and its specification is written when the kubelet has
recorded who holds the device ids: before the container is created. Otherwise `Allocate` has to guess among equal
claims, and the assignments are exchanged afterwards. docs/decisions/0009 tells why.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from tessera.agent.deviceplugin.cdifolder import CdiFolder
from tessera.api import cdi
from tessera.api.claims import corrected, read_claims
from tessera.clients.kube import Object, annotations_of, name_of
from tessera.core.edits import ShareEdits
from tessera.core.grant import Grant
from tessera.core.handover import SHARE_KIND, Handover, by_cdi, claim_name, grant
from tessera.core.matching import Answer, Claim, ClaimKey, Correction, Held, holder, pick, reconcile, served
from tessera.core.snapshot import Share
from tessera.errors import Conflict, Unavailable
from tessera.log import Logger

__all__ = ["Prepared", "ShareDesk", "World"]

_LATE_S = 3.0
"""How long an assignment may take from the API server to this agent after the kubelet has it."""
_AGAIN_S = 0.05
_UNHELD_S = 60.0
"""An answer that nobody holds for so long was for a pod that the kubelet refused for another reason."""
_PREFIX = "share-"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What a container with some shares is handed."""

    visible: tuple[str, ...]
    """UUIDs of its GPUs and MIG instances, each once."""
    edits: ShareEdits


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What the desk asks and tells."""

    pods: Callable[[], Iterable[Object]]
    """The Pod objects of this node."""
    record: Callable[[], Awaitable[tuple[Held, ...]]]
    """The kubelet's PodResources."""
    prepare: Callable[[tuple[Share, ...]], Awaitable[Prepared]]
    """Make the devices of shares exist, and tell what a container with them gets."""
    correct: Callable[[str, str, Mapping[str, str]], Awaitable[None]]
    """Set annotations of a pod: namespace, name, annotations."""


class ShareDesk:
    """Answers for resources whose pods carry an assignment.

    Args:
        world: what it asks and tells.
        folder: where CDI specifications go.
        memory: file that keeps what was answered, for a restart of the agent between the two calls; None keeps nothing.
        log: where answers and exchanges are logged.

    """

    def __init__(self, world: World, folder: CdiFolder, log: Logger, *, memory: Path | None = None) -> None:
        self.handover = Handover()
        self.share_unit_mib = 1024
        self.driver = cdi.NOTHING
        self._world = world
        self._folder = folder
        self._log = log
        self._memory = memory
        self._turn = asyncio.Lock()
        remembered = self._remembered()
        self._answers = {each.ids: each for each in remembered.answers}
        self._exchanges = {each.claim.key: each for each in remembered.exchanges}
        """Corrections that the Pod objects may not show yet."""
        self._unheld_s: dict[frozenset[str], float] = {}

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Grant:
        """Return what the container of some unserved claim of this size gets; with CDI a name that is filled in later.

        Raises:
            Conflict: no claim of this size waits here.
            Unavailable: the kubelet's record cannot be read.

        """
        async with self._turn:
            claim = await self._pick(resource, frozenset(ids))
            answer = Answer(ids=frozenset(ids), key=claim.key, specification=claim.specification, shares=claim.shares)
            name = claim_name(resource, ids)
            given = by_cdi(self.handover, SHARE_KIND, (name,))
            if self.handover.fixed_at_allocate:
                prepared = await self._world.prepare(claim.shares)
                given = grant(self.handover, given, prepared.visible, prepared.edits)
            self._answers = {kept: each for kept, each in self._answers.items() if not kept & answer.ids}
            self._answers[answer.ids] = answer
            self._remember()
            self._log.info("share_allocated", resource=resource, units=len(ids), pod=str(claim.key), claim=name)
            return given

    async def pre_start(self, resource: str, ids: tuple[str, ...]) -> None:
        """Make ready what the container that holds these ids was assigned.

        Raises:
            Conflict: it was given another pod's share, or has no assignment to so many units.
            Unavailable: the kubelet's record does not show who holds them.

        """
        async with self._turn:
            held = await self._world.record()
            who = holder(held, resource, frozenset(ids))
            if who is None:
                raise Unavailable(
                    f"{len(ids)} units of {resource}",
                    found="no container with these device ids in the kubelet's PodResources",
                    wanted="the container that is about to be created",
                )
            claim = await self._own(who)
            if self.handover.fixed_at_allocate:
                claim = await self._exchange(claim, held)
            if self.handover.cdi:
                prepared = await self._world.prepare(claim.shares)
                self._specify(claim_name(resource, ids), prepared)
            self._log.info("share_ready", pod=str(claim.key), resource=resource, gpus=[s.gpu for s in claim.shares])

    async def tidy(self) -> None:
        """Remove specifications that no container needs, forget answers that nobody holds, and mend assignments.

        Raises:
            Unavailable: the kubelet's record or the API cannot be read.

        """
        async with self._turn:
            held = await self._world.record()
            known = {frozenset(each.device_ids) for each in held}
            now_s = asyncio.get_running_loop().time()
            self._unheld_s = {ids: self._unheld_s.get(ids, now_s) for ids in self._answers if ids not in known}
            stale = [ids for ids, since_s in self._unheld_s.items() if now_s - since_s > _UNHELD_S]
            for ids in stale:
                del self._answers[ids]
            if stale:
                self._remember()
            waiting = {claim_name(answer.key.resource, ids) for ids, answer in self._answers.items()}
            needed = {claim_name(each.resource, each.device_ids) for each in held} | waiting
            removed = self._folder.keep({f"{_PREFIX}{name}" for name in needed}, prefix=_PREFIX)
            if removed:
                self._log.info("shares_removed", claims=[name.removeprefix(_PREFIX) for name in removed])
            if self.handover.fixed_at_allocate:
                await self._mend(held)

    async def _pick(self, resource: str, ids: frozenset[str]) -> Claim:
        """Return the claim to answer; an assignment that is not here yet is waited for."""
        held = await self._world.record()
        answers = [each for each in self._answers.values() if not each.ids & ids]
        last_s = asyncio.get_running_loop().time() + _LATE_S
        while True:
            claims = self._claims()
            try:
                return pick(claims, resource, len(ids), served(claims, held, answers))
            except Conflict:
                if asyncio.get_running_loop().time() > last_s:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _own(self, who: Held) -> Claim:
        last_s = asyncio.get_running_loop().time() + _LATE_S
        while True:
            claim = next((each for each in self._claims() if each.key == who.key), None)
            if claim is not None and claim.units == len(who.device_ids):
                return claim
            if asyncio.get_running_loop().time() > last_s:
                raise Conflict(
                    str(who.key),
                    found="no assignment" if claim is None else f"an assignment to {claim.units} units",
                    wanted=f"an assignment to {len(who.device_ids)} units of {who.resource}",
                    accepted="a pod that Tessera's scheduler placed (schedulerName: tessera-scheduler)",
                )
            await asyncio.sleep(_AGAIN_S)

    async def _exchange(self, claim: Claim, held: tuple[Held, ...]) -> Claim:
        """Return the claim with what its container was given in fact; assignments say so when this returns."""
        refused = await self._mend(held)
        if claim.key in refused:
            raise Conflict(
                str(claim.key),
                found=refused[claim.key],
                wanted="its own share",
                accepted="the pod deleted and made anew, or deviceListStrategy cdi-cri, which cannot mistake pods",
            )
        return next(each for each in self._claims() if each.key == claim.key)

    async def _mend(self, held: tuple[Held, ...]) -> dict[ClaimKey, str]:
        """Make the assignments say what holders were given; return those for which that cannot be, and why."""
        found = reconcile(self._claims(), held, self._answers.values())
        for each in found.corrections:
            self._exchanges[each.claim.key] = each
            self._log.info("assignment_exchanged", pod=str(each.claim.key), gpus=[share.gpu for share in each.shares])
        if found.corrections:
            self._remember()
        pods = {name_of(pod): pod for pod in self._world.pods()}
        for key, each in self._exchanges.items():
            pod = pods.get((key.namespace, key.pod))
            if pod is None:
                continue
            annotations = corrected(pod, each, share_unit_mib=self.share_unit_mib)
            present = annotations_of(pod)
            if any(present.get(name) != text for name, text in annotations.items()):
                await self._world.correct(key.namespace, key.pod, annotations)
                metadata = {**pod["metadata"], "annotations": {**present, **annotations}}
                pods[key.namespace, key.pod] = {**pod, "metadata": metadata}
        return dict(found.refused)

    def _claims(self) -> tuple[Claim, ...]:
        """Return the claims as they are after all exchanges, also those that the Pod objects do not show yet."""
        claims = read_claims(self._world.pods(), share_unit_mib=self.share_unit_mib).claims
        by_key = {claim.key: claim for claim in claims}
        for key, each in tuple(self._exchanges.items()):
            if key not in by_key or by_key[key].shares == each.shares:
                del self._exchanges[key]
        return tuple(
            msgspec.structs.replace(claim, shares=self._exchanges[claim.key].shares)
            if claim.key in self._exchanges
            else claim
            for claim in claims
        )

    def _specify(self, name: str, prepared: Prepared) -> None:
        visible = ("TESSERA_GPU_UUIDS", ",".join(prepared.visible))
        edits = msgspec.structs.replace(
            prepared.edits, env=(("NVIDIA_VISIBLE_DEVICES", "void"), visible, *prepared.edits.env)
        )
        text = cdi.write(SHARE_KIND, {name: edits}, self.driver, dev_root=self.handover.dev_root)
        self._folder.write(f"{_PREFIX}{name}", text)

    def _remembered(self) -> "_Memory":
        if self._memory is None or not self._memory.exists():
            return _Memory()
        try:
            return _DECODER.decode(self._memory.read_bytes())
        except (msgspec.DecodeError, OSError) as error:
            self._log.warning("answers_forgotten", reason=f"{self._memory}: {error}")
            return _Memory()

    def _remember(self) -> None:
        if self._memory is None:
            return
        kept = _Memory(answers=tuple(self._answers.values()), exchanges=tuple(self._exchanges.values()))
        partial = self._memory.with_suffix(".partial")
        try:
            partial.write_bytes(msgspec.json.encode(kept))
            partial.rename(self._memory)
        except OSError as error:
            self._log.warning("answers_not_kept", reason=f"{self._memory}: {error.strerror}")


class _Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What a restart of the agent must not lose: between two calls, and between two changes of one exchange."""

    answers: tuple[Answer, ...] = ()
    exchanges: tuple[Correction, ...] = ()


_DECODER = msgspec.json.Decoder(_Memory)
