"""Signatures of assignments: the annotation, the signed content, and which keys count.

Each user who may create pods may write `tessera.dev/assignment` on one. With it a server or agent of Tessera writes
`tessera.dev/assignment-signature`, `v1.KEYID.BASE64`: an Ed25519 signature over the pod's UID, its node and the
assignment's text, invalid on another pod, another node or beside another text.
docs/decisions/0012-assignments-are-signed.md says why.

Signing and verifying are passed in as functions: this module is text and decisions.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field
from tessera.api.kubernetes.podspecs import ASSIGNMENT, SIGNATURE
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.errors import InvalidInput, shown

__all__ = [
    "KEYS",
    "SECRET",
    "Authority",
    "InvalidAssignment",
    "Keys",
    "UnknownKey",
    "assignment_of",
    "check_signature",
    "is_signed",
    "key_id",
    "key_named",
    "keys_text",
    "public_keys",
    "published",
    "published_keys",
    "secret",
    "secret_seed",
    "signature_text",
    "signed_text",
]

SECRET = "tessera-assignment-key"  # noqa: S105 (the name of an object)
"""The Secret with the servers' private key."""
KEYS = "tessera-assignment-keys"
"""The ConfigMap with the public keys of servers, current and former."""

_VERSION = "v1"
_DOMAIN = "tessera.dev/assignment/v1"
"""Prefix of the signed content, so that no signature for another purpose is valid for an assignment."""
_SEED = "seed"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_FIX = (
    "set schedulerName: tessera-scheduler, and no annotation tessera.dev/assignment, which a server of Tessera writes"
)

Verify: TypeAlias = Callable[[bytes, bytes, bytes], bool]
"""Returns whether a public key made a signature of a message: key, signature, message."""


class InvalidAssignment(InvalidInput):
    """An assignment that Tessera did not write for this pod on this node, or that exceeds the pod's request."""


class UnknownKey(InvalidAssignment):
    """An assignment signed with a key that is unknown here, or not known yet.

    Args:
        pod: the object.
        key: id of the key.

    """

    def __init__(self, pod: Field, key: str) -> None:
        found = f"a signature of key {shown(key)}, which is no key of this node or of a server"
        super().__init__(_subject(pod), found=found, hint=_FIX)
        self.key = key


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys whose signatures count on the pods of one node."""

    public: Mapping[str, bytes]
    """By id: those of the servers and of the node's own agent, current and former."""
    verify: Verify
    unsigned: Literal["refused", "gpushare", "counts"] = "refused"
    """How unsigned assignments count. On nodes without an agent gpushare's own annotations count, because
    its own scheduler and plugin serve there. All count if the agent's version does not sign yet."""
    gpus: frozenset[int] | None = None
    """Indices of the node's GPUs, which unsigned annotations must name; None where they are unknown."""
    refuses: Callable[[str], bool] = lambda _: True
    """Whether an unknown key, by id, is rejected. A server reads the API first: the key may be new."""

    def like(self, other: "Keys | None") -> bool:
        """Return whether other keys are equivalent."""
        known = (self.public, self.unsigned, self.gpus)
        return other is not None and known == (other.public, other.unsigned, other.gpus)


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """The public keys of a cluster's servers, which determine the keys that count on each node."""

    servers: Mapping[str, bytes]
    verify: Verify

    def keys(
        self,
        state: GpuNodeState | None,
        gpus: frozenset[int] | None = None,
        refuses: Callable[[str], bool] | None = None,
    ) -> Keys:
        """Return the keys that count on a node: the servers', and those of the node's own agent.

        Args:
            state: its agent's report; None for none.
            gpus: indices of its GPUs.
            refuses: as in `Keys`.

        """
        own = public_keys(state.assignment_keys) if state else {}
        reported = state is not None and state.reported
        return Keys(
            public={**self.servers, **own},
            verify=self.verify,
            unsigned="gpushare" if not reported else "refused" if own else "counts",
            gpus=gpus,
            refuses=refuses or (lambda _: True),
        )


# Signed content and the format of signatures


def signed_text(uid: str, node: str, assignment: str) -> bytes:
    """Return the signed content; no two assignments have the same."""
    return f"{_DOMAIN}\0{uid}\0{node}\0{assignment}".encode("utf-8", "surrogatepass")


def key_id(public: bytes) -> str:
    """Return the id of a key: a prefix of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:16]


def signature_text(public: bytes, signature: bytes) -> str:
    """Return the text of the annotation `tessera.dev/assignment-signature`."""
    return f"{_VERSION}.{key_id(public)}.{base64.b64encode(signature).decode()}"


def key_named(signature: str) -> str:
    """Return the key id in a signature; empty for an invalid one."""
    version, _, rest = signature.partition(".")
    known, _, encoded = rest.partition(".")
    return known if version == _VERSION and encoded else ""


def check_signature(pod: Field, keys: Keys) -> None:
    """Reject the assignment of a bound pod if it is not signed for this pod on its node.

    Raises:
        UnknownKey: by an unknown key; `Keys.refuses` is ignored here.
        InvalidAssignment: it has no signature, or an invalid one.

    """
    annotations = pod.get("metadata", "annotations")
    field = annotations.get(SIGNATURE)
    if not field.present:
        raise _invalid_assignment(pod, "no signature")
    known = key_named(field.text())
    if not known:
        raise _invalid_assignment(pod, f"a signature that is not of the form {_VERSION}.KEYID.BASE64")
    signature = _decoded(field.text().partition(".")[2].partition(".")[2], _SIGNATURE_BYTES)
    if signature is None:
        raise _invalid_assignment(pod, "a signature that is not base64 of 64 bytes")
    public = keys.public.get(known)
    if public is None:
        raise UnknownKey(pod, known)
    uid, node = pod.get("metadata", "uid").text(""), pod.get("spec", "nodeName").text("")
    if not keys.verify(public, signature, signed_text(uid, node, annotations.get(ASSIGNMENT).text(""))):
        raise _invalid_assignment(pod, "a signature of another pod, node or assignment")


def is_signed(pod: Mapping[str, Any], keys: Keys) -> bool:
    """Return whether the assignment of a Pod object is signed for this pod on its node."""
    try:
        check_signature(Field(Document(source="pod", number=1, data=dict(pod), first_line=1), dict(pod)), keys)
    except InvalidInput:
        return False
    return True


def _invalid_assignment(pod: Field, found: str) -> InvalidAssignment:
    return InvalidAssignment(_subject(pod), found=found, hint=_FIX)


def _subject(pod: Field) -> str:
    return assignment_of(pod).replace("assignment of", "assignment not signed by Tessera,", 1)


def assignment_of(pod: Field) -> str:
    """Return the name of a pod's assignment in errors."""
    metadata = pod.get("metadata")
    names = [metadata.get(key).value for key in ("namespace", "name")]
    return f"assignment of pod {'/'.join(str(name) for name in names if name)}"


def _decoded(text: str, length: int) -> bytes | None:
    """Return the bytes of a base64 text, if it has this length and is canonical."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == length and base64.b64encode(found).decode() == text else None


# The objects with keys


def keys_text(public: Iterable[bytes]) -> tuple[str, ...]:
    """Return public keys as a GPUNode's status has them."""
    return tuple(base64.b64encode(each).decode() for each in public)


def public_keys(texts: Iterable[str]) -> dict[str, bytes]:
    """Return public keys by id; invalid texts are left out."""
    found = (_decoded(text, _KEY_BYTES) for text in texts)
    return {key_id(each): each for each in found if each is not None}


def published(public: bytes) -> dict[str, Any]:
    """Return the ConfigMap with one public key in it, for server-side apply; each key has its own field manager."""
    (text,) = keys_text([public])
    return _object("ConfigMap", KEYS) | {"data": {key_id(public): text}}


def published_keys(config_map: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return the servers' public keys by id, from the ConfigMap; invalid ones are left out."""
    data = (config_map or {}).get("data") or {}
    return public_keys(str(text) for text in data.values())


def secret(seed: bytes) -> dict[str, Any]:
    """Return the Secret with the servers' private key."""
    return _object("Secret", SECRET) | {"type": "Opaque", "data": {_SEED: base64.b64encode(seed).decode()}}


def secret_seed(secret: Mapping[str, Any]) -> bytes:
    """Return the private key in the Secret.

    Raises:
        InvalidInput: there is none; the text does not quote the content.

    """
    found = _decoded(str((secret.get("data") or {}).get(_SEED) or ""), _KEY_BYTES)
    if found is None:
        raise InvalidInput(
            f"Secret {NAMESPACE}/{SECRET}",
            found=f"data.{_SEED} is not a private key, 32 bytes in base64",
            hint=f"kubectl delete secret -n {NAMESPACE} {SECRET}, after which the server makes a new key",
        )
    return found


def _object(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}}
