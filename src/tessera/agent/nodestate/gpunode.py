"""The agent's side of its GPUNode: creates the object, writes its status, and watches its spec.

Without the CRD the agent works as before there was one; that is logged once, with what to install.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from tessera.api.tessera.v1alpha1.gpunodes import new_object, offered_field, read_gpu_node, status_fields
from tessera.clients.kube import GPU_NODES, Change, Kube, Object, Selection, Store, uid_of, version_of
from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState
from tessera.core.cluster.protocols.allocators import devices_by_gpu, devices_one_by_one
from tessera.core.gpu.deviceids import DeviceId
from tessera.errors import Conflict, InvalidInput, Unavailable, Unsupported
from tessera.log import Logger, RepeatedError

__all__ = ["GpuNodeLink", "GpuNodeRequest"]

_REMIND_S = 60.0


class GpuNodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of the GPUNode at one moment."""

    desired: tuple[DesiredDevices, ...] | None = None
    """None without the CRD: then no devices are desired, and all present ones are advertised."""
    policy_name: str = ""
    """The GPUPolicy that applies; empty for none."""
    policy: str = ""
    """The policy's settings for this node, in the form of the node policy file."""
    generation: int = 0
    """Generation of the spec."""
    problem: str = ""
    """Why the current spec is not followed but the former one."""


class GpuNodeLink:
    """Watches and reports one node's GPUNode.

    Args:
        kube: the Kubernetes API.
        node: the node's name.
        log: for changes.
        wake: called after each change.
        remind_s: how often it is logged that it is unknown yet whether the CRD is installed.

    Attributes:
        store: the object; it is watched while its `run` runs.

    """

    def __init__(
        self, kube: Kube, node: str, log: Logger, *, wake: Callable[[], None], remind_s: float = _REMIND_S
    ) -> None:
        self._kube = kube
        self.node = node
        self._log = log
        self._wake = wake
        self._remind_s = remind_s
        self._complain = RepeatedError(log, "gpunode_not_followed")
        selection = Selection(fields=(("metadata.name", node),))
        self.store = Store(kube, GPU_NODES, selection, wake=wake, on_change=self._changed, on_error=self._on_error)
        self._installed = False
        self._absent = False
        self._known = asyncio.Event()
        """Whether it is known if the CRD is installed."""
        self._read: tuple[Object | None, GpuNodeRequest] = (None, GpuNodeRequest())
        self._acted: tuple[Any, Any] | None = None
        """The part of the spec that concerns an agent, when its generation was last reported."""
        self._written: tuple[dict[str, Any], str] = ({}, "")
        """The last status written, and the object's version at that time."""
        self._after: Object = {}
        """The object as it was stored then: the watch lags."""
        self._gone = ""
        """UID of the object that was last deleted."""
        self._offered = frozenset[DeviceId]()
        self._keys: tuple[str, ...] = ()
        """The public keys that this agent publishes."""
        self._keys_read: tuple[str, ...] = ()
        """Those in the object at the last read, including former ones of this node."""
        self._offered_in = ""
        """UID of the object with these."""
        self._replaced = False
        """Whether another object was read in its place."""

    async def known(self) -> None:
        """Return once it is known whether the CRD is installed, and what the spec is.

        However long that takes: an agent that started without would advertise claimed devices, sign nothing that
        runs, and forget the keys that it published.
        """
        while not self._known.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._remind_s):
                    await self._known.wait()
                    return
            fix = "upgrade the chart, so that the agent may list and watch gpunodes, and let it reach the API server"
            self._log.warning("gpunode_awaited", reason=self._complain.reason or "no answer", fix=fix)

    def _changed(self, change: Change) -> None:
        if change.object is not None and change.gone:
            self._gone = uid_of(change.object)
        if change.object is None:
            self._installed, self._absent = True, False
            self._complain.clear()
            self._known.set()

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, Unsupported):
            self._installed, self._absent = False, True
            self._known.set()
        self._complain(error)

    @property
    def _object(self) -> Object | None:
        return self.store.objects.get(("", self.node)) if self._installed else None

    def request(self) -> GpuNodeRequest:
        """Return the spec; where it is invalid or the object was deleted, the former one.

        Also for a recreated object, until a controller has written its part.
        """
        if not self._installed:
            return GpuNodeRequest()
        found, (known, request) = self._object, self._read
        if found is None:
            return GpuNodeRequest(desired=()) if known is None else request
        if found is not known:
            made_anew = known is not None and uid_of(known) != uid_of(found)
            if made_anew and not (found.get("spec") or {}).keys() & {"policy", "desired"}:
                return request
            request = _request_of(found, request)
            self._read = (found, request)
        return request

    @property
    def absent(self) -> bool:
        """Whether the CRD is known to be missing: then no server allocates anything of this node."""
        return self._absent

    def offered(self) -> frozenset[DeviceId]:
        """Return the devices that are the kubelet's to allocate, as `status.offered` was last stored.

        Deleting the object takes nothing back from the kubelet.
        """
        found = self._latest()
        if found is not None and (not self._offered or uid_of(found) == self._offered_in):
            self._offered, self._offered_in = _offered(found), uid_of(found)
        return self._offered

    @property
    def lost(self) -> frozenset[DeviceId]:
        """The devices that were the kubelet's in a deleted object, until they are written to the next one."""
        offered, found = self.offered(), self._latest()
        gone = self._replaced or found is None or uid_of(found) != self._offered_in
        return offered if self._installed and gone else frozenset()

    def _latest(self) -> Object | None:
        """Return the object as last observed or stored; the watch lags."""
        found = self._object
        if found is None:
            return self._after if self._after and uid_of(self._after) != self._gone else None
        return self._after if _is_later(self._after, found) else found

    async def fresh(self, node: Object) -> GpuNodeState:
        """Return the current object, created if missing (a quorum read).

        Args:
            node: the Node object, its owner.

        Raises:
            TesseraError: the API server rejects or does not answer, or the object cannot be parsed.

        """
        found = await self._kube.get(GPU_NODES, self.node) or await self._make(node)
        if found is None:
            raise Unavailable(
                f"GPUNode {self.node}",
                found="another process created it, and it is not visible yet",
                hint="the agent tries again",
            )
        self._replaced = bool(self.offered()) and uid_of(found) != self._offered_in
        state = read_gpu_node(found)
        self._keys_read = state.assignment_keys
        return state

    async def write_offered(self, keys: frozenset[DeviceId], version: str) -> None:
        """Write the devices that are the kubelet's, on the version of the object that this was decided on.

        Raises:
            Conflict: there was a concurrent write; decide again.
            TesseraError: the API server rejects or does not answer.

        """
        status: dict[str, Any] = {"offered": offered_field(devices_by_gpu(keys))}
        if self._keys and not self._keys_read:  # a status without keys is that of an agent that does not sign
            status["assignmentKeys"] = list(self._keys)
        body = {"metadata": {"resourceVersion": version}, "status": status}
        self._after = await self._kube.patch(GPU_NODES, self.node, body, subresource="status")
        self._offered_in, self._replaced = uid_of(self._after), False
        if keys and not (self._after.get("status") or {}).get("offered"):
            raise Unsupported(
                f"GPUNode {self.node}",
                found="its kind has no field status.offered, without which nothing is offered by name",
                hint="upgrade the chart, see docs/install.md",
            )
        self._log.info("offered_written", devices=len(keys))

    @property
    def assignment_keys(self) -> tuple[str, ...] | None:
        """The public keys in the object; None where it is not known whether there is an object."""
        if not self._installed:
            return None
        return tuple(((self._latest() or {}).get("status") or {}).get("assignmentKeys") or ())

    @property
    def unsigned(self) -> bool:
        """Whether the agent before this one did not sign: it wrote a status, and no keys in it."""
        found = (self._latest() or {}) if self._installed else {}
        return bool(found.get("status")) and not self.assignment_keys

    async def publish_keys(self, keys: tuple[str, ...]) -> None:
        """Publish public keys, if a status was reported already; else they come with the first.

        Raises:
            TesseraError: the API server rejects or does not answer; call again.

        """
        self._keys = keys
        found = self._latest()
        if found is not None and found.get("status") and self.assignment_keys != keys:
            body = {"status": {"assignmentKeys": list(keys)}}
            self._after = await self._kube.patch(GPU_NODES, self.node, body, subresource="status")

    async def report(self, state: GpuNodeState, node: Object, *, generation: int) -> None:
        """Create the object if missing, and write the status if it changed.

        A generation that only claims changed is not reported: that would be a write for every bound pod,
        each in conflict with the servers' own.

        Args:
            state: the desired status.
            node: the Node object, owner of the GPUNode.
            generation: of the spec that was acted on.

        Raises:
            TesseraError: the API server rejects or does not answer; call again.

        """
        if not self._installed:
            return
        found = self._latest() or await self._make(node)
        if found is None or self.lost:  # servers claim what is free as soon as GPUs are reported
            return
        present, spec = found.get("status") or {}, found.get("spec") or {}
        concerns = spec.get("policy"), spec.get("desired")
        news = concerns != self._acted and (found["metadata"].get("generation") or 0) == generation
        observed = generation if news else present.get("observedGeneration", 0)
        status = status_fields(state, observed_generation=observed)
        same = {key: present.get(key) for key in status} == status
        # A field that the server dropped, because the CRD's schema lacks it, is not written again.
        refused = self._written == (status, version_of(found))
        if not same and not refused:
            self._after = await self._kube.patch(GPU_NODES, self.node, {"status": status}, subresource="status")
            self._written = status, version_of(self._after)
            self._log.info("gpunode_reported", generation=observed)
        self._acted = concerns if news else self._acted

    async def _make(self, node: Object) -> Object | None:
        """Create the object; None if another process did, which the watch will show."""
        uid = (node.get("metadata") or {}).get("uid", "")
        try:
            made = await self._kube.create(GPU_NODES, new_object(self.node, uid))
        except Conflict:
            return None
        self._log.info("gpunode_created")
        return made


def _offered(gpu_node: Object) -> frozenset[DeviceId]:
    try:
        return devices_one_by_one(read_gpu_node(gpu_node).offered)
    except InvalidInput:
        return frozenset()  # devices are not advertised before they are written


def _is_later(one: Object, other: Object) -> bool:
    """Return whether one is a later state of the object, or was created after the other was deleted."""
    first, second = version_of(one), version_of(other)
    return first.isdecimal() and second.isdecimal() and int(first) > int(second)


def _request_of(gpu_node: Object, former: GpuNodeRequest) -> GpuNodeRequest:
    generation = (gpu_node.get("metadata") or {}).get("generation", 0)
    try:
        state = read_gpu_node(gpu_node)
    except InvalidInput as error:
        desired = former.desired or ()
        return msgspec.structs.replace(former, desired=desired, generation=generation, problem=str(error))
    document = ((gpu_node.get("spec") or {}).get("policy") or {}).get("document")
    return GpuNodeRequest(
        desired=state.desired,
        policy_name=state.policy,
        policy=msgspec.json.encode(document).decode() if document else "",
        generation=generation,
    )
