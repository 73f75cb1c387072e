"""A Pod object of a live cluster as the scheduler counts it. Objects are untrusted: nothing here raises."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field, in_words
from tessera.api.kubernetes.containerrequests import is_zero, names_gpu
from tessera.api.kubernetes.podspecs import PREFIX, read_need
from tessera.api.kubernetes.podstates import is_finished
from tessera.api.tessera.pods.assignments import check_requested, read_shares, signed_request
from tessera.api.tessera.pods.signatures import Keys, UnknownKey
from tessera.api.untyped import as_dict
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.need import Form, Need, PodKey
from tessera.core.workload.resources import SHARE_MEMORY
from tessera.errors import InvalidInput

__all__ = ["LivePod", "object_field", "read_live_pod", "requests_gpus"]


class LivePod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, read from its object."""

    uid: str
    key: PodKey
    node: str = ""
    """Empty for a pod that is not bound."""
    need: Need = Need()
    """Without the parts that kube-scheduler decides, so that equal shapes are equal."""
    shares: tuple[Share, ...] = ()
    """Its shares by its annotations."""
    priority: int = 0
    finished: bool = False
    """Whether it has run to its end and uses nothing."""
    gpus: bool = False
    """Whether it requests GPUs in a form that Tessera knows."""
    wrong: str = ""
    """Why its request is invalid, naming the field; then the need is empty."""
    unread: str = ""
    """Why its recorded shares are invalid, or do not count; then they are empty."""
    doubted: str = ""
    """Id of the unknown key that signed its shares, which count until the key was looked up."""

    @property
    def claiming(self) -> bool:
        """Whether it needs an assignment: shares and needs do, exact requests are the kubelet's to serve."""
        return any(request.form is not Form.EXACT for request in self.need.requests)


def read_live_pod(pod: Mapping[str, Any], *, share_unit_mib: int = 1024, keys: Keys | None = None) -> LivePod:
    """Return a parsed Pod object, as far as it is valid.

    Args:
        pod: the object, with whatever it may have instead of what it should have.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        keys: the keys that count on its node; without them assignments are not verified.

    """
    metadata, spec = as_dict(pod.get("metadata")), as_dict(pod.get("spec"))
    field = object_field("Pod", pod)
    need, wrong = _need(field, share_unit_mib, keys)
    shares, unread, doubted = _shares(field, None if wrong else need, share_unit_mib, keys)
    priority, node = spec.get("priority"), spec.get("nodeName")
    return LivePod(
        uid=str(metadata.get("uid") or ""),
        key=PodKey(f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or ''}"),
        node=node if isinstance(node, str) else "",
        need=need,
        shares=shares,
        priority=priority if isinstance(priority, int) else 0,
        finished=is_finished(pod),
        gpus=requests_gpus(pod),
        wrong=wrong,
        unread=unread,
        doubted=doubted,
    )


def _need(field: Field, share_unit_mib: int, keys: Keys | None) -> tuple[Need, str]:
    try:
        need = read_need(field, share_unit_mib=share_unit_mib, requested=signed_request(field, keys))
    except InvalidInput as error:
        return Need(), in_words(error, field)
    # Network cards, cached models and the like are counted by kube-scheduler.
    requests = tuple(
        request for request in need.requests if request.form is not Form.EXACT or names_gpu(request.resource)
    )
    return Need(cpu_milli=need.cpu_milli, memory_mib=need.memory_mib, requests=requests, models=need.models), ""


def _shares(
    field: Field, need: Need | None, share_unit_mib: int, keys: Keys | None
) -> tuple[tuple[Share, ...], str, str]:
    """Return the shares, why there are none, and the id of the unknown key that signed them."""
    try:
        return read_shares(field, need, share_unit_mib=share_unit_mib, keys=keys) or (), "", ""
    except UnknownKey as error:
        if keys is None or keys.refuses(error.key):
            return (), in_words(error, field), ""
        if need is None:  # no valid request
            return (), in_words(error, field), error.key
        return (*_doubted(field, need, share_unit_mib), error.key)
    except InvalidInput as error:
        return (), in_words(error, field), ""


def _doubted(field: Field, need: Need, share_unit_mib: int) -> tuple[tuple[Share, ...], str]:
    """Return the shares of an assignment with an unknown key, at most the request, and why there are none."""
    try:
        shares = read_shares(field, need, share_unit_mib=share_unit_mib) or ()
        check_requested(field, need, shares)
    except InvalidInput as error:
        return (), in_words(error, field)
    return shares, ""


def requests_gpus(pod: Mapping[str, Any]) -> bool:
    """Return whether a Pod object requests devices, or an amount by Tessera's or gpushare's resources, even zero."""
    return any(
        name.startswith(PREFIX) or name == SHARE_MEMORY or (names_device(name) and not is_zero(amount))
        for container in _containers(as_dict(pod.get("spec")))
        for part in ("limits", "requests")
        for name, amount in as_dict(as_dict(container.get("resources")).get(part)).items()
    )


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("containers", "initContainers"):
        found = spec.get(kind)
        yield from map(as_dict, found if isinstance(found, list) else ())


def object_field(kind: str, value: Mapping[str, Any]) -> Field:
    """Return an object of the API server as a field for the readers of objects."""
    return Field(Document(source=kind, number=1, data=dict(value), first_line=1), dict(value))
