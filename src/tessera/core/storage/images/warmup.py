"""Which node pulls which image next, before pods need it.

A node pulls an image in its *turn*. Turns are assigned in the order of demand: images of pending pods, most pods
first, then the others in the listed order. A turn lasts until the node reports the end of the pull; at any time
no node and no registry has more turns than its limit. A failed pull gets another turn after a while, which
doubles each time.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from tessera.core.storage.retries import fetch_backoff_s, has_passed

__all__ = [
    "MOST_OF_NODE",
    "DesiredImage",
    "ImageProblem",
    "ImageStep",
    "ImageSummary",
    "NodeImages",
    "ObservedImage",
    "Turn",
    "Warmup",
    "WarmupSummary",
    "image_nodes",
    "next_steps",
    "observed_image",
    "plan_warmups",
    "summarize_warmup",
]

MOST_OF_NODE = 256
"""Most images of a node; the last in order are left out, but none that it keeps for an invalid warmup."""
_UNREPORTED_S = 120.0
"""A turn without a report from its node for this long is over: no agent runs there."""
_LONGEST_S = 3600.0
"""A turn that lasts longer is over: another node may use it."""
_MOST_PROBLEMS = 16


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """Images desired on some nodes."""

    name: str
    images: tuple[str, ...]
    """Full names, in pulling order."""
    nodes: frozenset[str]
    """The selected nodes."""
    per_node: int = 1
    """Concurrent pulls of a node."""
    per_registry: int = 10
    """Concurrent pulls from one registry, by all nodes together."""
    disk_percent: int = 80
    """A node whose image disk is at least this full pulls nothing."""
    pinned: bool = True
    """Whether they are protected from the kubelet's garbage collection."""
    secrets: tuple[str, ...] = ()
    """Secrets with credentials."""
    digests: tuple[tuple[str, str], ...] = ()
    """The resolved digests."""

    def is_full(self, node: "NodeImages") -> bool:
        """Return whether a selected node has too little disk left."""
        return node.name in self.nodes and node.disk_percent >= self.disk_percent


class DesiredImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image desired on a node."""

    image: str
    digest: str = ""
    """Its resolved digest, on the node that pulled it first; empty before."""
    pinned: bool = False
    secrets: tuple[str, ...] = ()
    attempt: int = 0
    """Number of the pull in its present or last turn; 0 for none."""
    unread: str = ""
    """Why this version of Tessera cannot read what another one wrote of it; then it counts as pinned."""


class ObservedImage(msgspec.Struct, frozen=True, kw_only=True):
    """A node's report of an image."""

    image: str
    state: Literal["Missing", "Pulling", "Present", "Failed"]
    digest: str = ""
    bytes: int = 0
    """On disk."""
    pinned: bool = False
    attempt: int = 0
    """Number of the last pull that was started."""
    failures: int = 0
    """Pulls that failed since the last one that did not."""
    failed_s: float = 0.0
    """When it failed, in seconds since 1970."""
    reason: str = ""
    unread: bool = False
    """Whether this version of Tessera cannot read the report of another one, with the reason."""


class NodeImages(msgspec.Struct, frozen=True, kw_only=True):
    """A node, its former desired images and its report."""

    name: str
    ready: bool = True
    desired: tuple[DesiredImage, ...] = ()
    observed: tuple[ObservedImage, ...] = ()
    disk_percent: int = 0
    """How full the disk with its images is."""
    reason: str = ""
    """Why its container runtime does not answer; empty if it does."""


class Turn(msgspec.Struct, frozen=True):
    """A pull's turn and its start: the controller's memory."""

    node: str
    image: str
    attempt: int


class ImageProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node does not have an image."""

    node: str
    image: str
    reason: str


class ImageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One image on all nodes of a warmup."""

    image: str
    digest: str = ""
    nodes: int = 0
    """Nodes that have it."""
    pending_pods: int = 0
    """Pending pods that need it."""


class WarmupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A warmup on all of its nodes, of bounded size."""

    nodes: int = 0
    ready: int = 0
    """Nodes that have all images."""
    pulling: int = 0
    """Nodes that are pulling one of them."""
    pinned: int = 0
    """Nodes that have all of them pinned."""
    images: tuple[ImageSummary, ...] = ()
    problems: tuple[ImageProblem, ...] = ()
    """The first of them."""


class ImageStep(msgspec.Struct, frozen=True):
    """An agent's next actions for its images."""

    kind: Literal["pull", "pin", "unpin"]
    image: DesiredImage


def plan_warmups(
    warmups: Sequence[Warmup],
    nodes: Sequence[NodeImages],
    demand: Mapping[str, int],
    turns: Mapping[Turn, float],
    now_s: float,
    *,
    retained: Collection[str] = (),
) -> dict[str, tuple[DesiredImage, ...]]:
    """Return the desired images of each node with the current turns; unchanged where nothing changed.

    Args:
        warmups: all valid ones, in the order of their names.
        nodes: those that any warmup selects, and those with former desired images.
        demand: number of pending pods by the image that they need.
        turns: when each remembered turn was assigned; others count from now.
        now_s: seconds since 1970.
        retained: images of invalid ones, by their last valid state: nodes that had them keep them, without a further
            turn unless a valid one lists them.

    """
    planned = {node.name: _planned(warmups, node, retained) for node in nodes}
    desired = {name: images for name, (images, _) in planned.items()}
    per_node = {
        node.name: min((each.per_node for each in warmups if node.name in each.nodes), default=0) for node in nodes
    }
    per_registry = Counter[str]()
    for warmup in warmups:
        for registry in map(_registry, warmup.images):
            per_registry[registry] = min(warmup.per_registry, per_registry.get(registry, warmup.per_registry))
    # 1. Keep the turns that are not over; collect those that may get one.
    candidates: list[tuple[int, int, int, str]] = []
    for node in nodes:
        observed = {each.image: each for each in node.observed}
        full = any(each.is_full(node) for each in warmups)
        for place, image in enumerate(desired[node.name]):
            found = observed.get(image.image, ObservedImage(image=image.image, state="Missing"))
            started_s = turns.get(Turn(node.name, image.image, image.attempt))
            if _lasts(node, image, found, now_s if started_s is None else started_s, now_s):
                per_node[node.name] -= 1
                per_registry[_registry(image.image)] -= 1
            elif image.image not in planned[node.name][1]:
                continue
            elif node.ready and not node.reason and not full and _is_due(image, found, started_s, now_s):
                attempt = max(image.attempt, found.attempt) + 1
                candidates.append((-demand.get(image.image, 0), place, attempt, node.name))
    # 2. Assign others, in the order of demand.
    for _, place, attempt, name in sorted(candidates):
        image = desired[name][place]
        registry = _registry(image.image)
        if per_node[name] > 0 and per_registry[registry] > 0:
            per_node[name] -= 1
            per_registry[registry] -= 1
            desired[name][place] = msgspec.structs.replace(image, attempt=attempt)
    return {name: tuple(images) for name, images in desired.items()}


def _registry(image: str) -> str:
    return image.partition("/")[0]


def _listed(warmups: Sequence[Warmup], node: NodeImages) -> dict[str, DesiredImage]:
    """Return the images of all warmups that select a node, with their former attempts."""
    attempts = {each.image: each.attempt for each in node.desired}
    found: dict[str, DesiredImage] = {}
    for warmup in warmups:
        for image in warmup.images if node.name in warmup.nodes else ():
            former = found.get(image, DesiredImage(image=image, attempt=attempts.get(image, 0)))
            found[image] = msgspec.structs.replace(
                former,
                digest=former.digest or dict(warmup.digests).get(image, ""),
                pinned=former.pinned or warmup.pinned,
                secrets=tuple(dict.fromkeys((*former.secrets, *warmup.secrets))),
            )
    return found


def _planned(
    warmups: Sequence[Warmup], node: NodeImages, retained: Collection[str]
) -> tuple[list[DesiredImage], Collection[str]]:
    """Return the desired images of a node, and which of them may get a turn: those that a valid warmup lists.

    All stay as they are, without a turn, while one that must stay cannot be written back.
    """
    listed = _listed(warmups, node)
    stay = {each.image: each for each in node.desired if each.image in retained}
    if any(each.unread for name, each in stay.items() if name not in listed):
        return list(node.desired), frozenset()
    others = [name for name in listed if name not in stay][: max(0, MOST_OF_NODE - len(stay))]
    found = listed | {name: each for name, each in stay.items() if name not in listed}
    desired = [
        msgspec.structs.replace(each, pinned=each.pinned or (name in stay and stay[name].pinned))
        for name, each in found.items()
        if name in stay or name in others
    ]
    return desired, listed.keys()


def _is_right(image: ObservedImage | None, digest: str) -> bool:
    """Return whether a node has an image with the desired digest."""
    return image is not None and image.state == "Present" and digest in ("", image.digest)


def _lasts(node: NodeImages, image: DesiredImage, observed: ObservedImage, started_s: float, now_s: float) -> bool:
    """Return whether an image has a turn that is not over."""
    begun = observed.attempt >= image.attempt
    ended = begun and observed.state != "Pulling"
    if not image.attempt or not node.ready or ended or _is_right(observed, image.digest):
        return False
    return not has_passed(started_s, _LONGEST_S if begun else _UNREPORTED_S, now_s)


def _is_due(image: DesiredImage, observed: ObservedImage, started_s: float | None, now_s: float) -> bool:
    """Return whether an image without a turn is a candidate: a pause after it failed, and after its turn began.

    It failed by the node's clock, which may be far from this one; its turn, if that is known, began by this one.
    """
    if observed.unread:
        return False
    if observed.state != "Failed":
        return not _is_right(observed, image.digest)
    pause_s = fetch_backoff_s(max(observed.failures, 1))
    moments = (observed.failed_s,) if started_s is None else (observed.failed_s, started_s)
    return all(has_passed(each, pause_s, now_s) for each in moments)


def summarize_warmup(warmup: Warmup, nodes: Sequence[NodeImages], demand: Mapping[str, int]) -> WarmupSummary:
    """Return the status of a warmup.

    Args:
        warmup: the warmup.
        nodes: all nodes; unselected ones are ignored.
        demand: number of pending pods by the image that they need.

    """
    mine = [each for each in nodes if each.name in warmup.nodes]
    observed = {node.name: {each.image: each for each in node.observed} for node in mine}
    digests = dict(warmup.digests)
    images = []
    for image in warmup.images:
        have = [found for each in observed.values() if (found := each.get(image)) and found.state == "Present"]
        known = Counter(each.digest for each in have if each.digest)
        # Resolved once: by the first node, or by most if several were at the same time.
        digest = digests.get(image) or min(known, key=lambda each: (-known[each], each), default="")
        count = sum(each.digest == digest for each in have)
        images.append(ImageSummary(image=image, digest=digest, nodes=count, pending_pods=demand.get(image, 0)))
    ready = [each for each in observed.values() if all(_is_right(each.get(one.image), one.digest) for one in images)]
    return WarmupSummary(
        nodes=len(mine),
        ready=len(ready),
        pulling=sum(
            any(each.state == "Pulling" for each in node.observed if each.image in warmup.images) for node in mine
        ),
        pinned=sum(all(each[image].pinned for image in warmup.images) for each in ready),
        images=tuple(images),
        problems=tuple(_problems(warmup, mine))[:_MOST_PROBLEMS],
    )


def image_nodes(image: str, warmups: Sequence[Warmup], nodes: Sequence[NodeImages]) -> tuple[int, int]:
    """Return how many nodes should have an image by any warmup, and how many of them have it."""
    selected = frozenset[str]().union(*(each.nodes for each in warmups if image in each.images))
    mine = [node for node in nodes if node.name in selected]
    ready = sum(any(each.image == image and each.state == "Present" for each in node.observed) for node in mine)
    return len(mine), ready


def _problems(warmup: Warmup, nodes: Iterable[NodeImages]) -> Iterable[ImageProblem]:
    for node in nodes:
        desired = {each.image for each in node.desired}
        if reason := _stops(warmup, node):
            yield ImageProblem(node=node.name, image="", reason=reason)
        for each in node.observed:
            if each.state == "Failed" and each.image in warmup.images:
                yield ImageProblem(node=node.name, image=each.image, reason=each.reason)
        for image in warmup.images if len(desired) >= MOST_OF_NODE else ():
            if image not in desired:
                reason = f"a node has at most {MOST_OF_NODE} images: list fewer, or select fewer nodes"
                yield ImageProblem(node=node.name, image=image, reason=reason)


def _stops(warmup: Warmup, node: NodeImages) -> str:
    """Return why a node pulls none of a warmup's images; empty if nothing stops it."""
    unread = next((each.unread for each in node.desired if each.unread), "")
    if not node.ready:
        return "the node is not ready"
    if node.reason or unread:
        return node.reason or f"its images stay as they are: {unread}"
    if warmup.is_full(node):
        limit = f"nothing is pulled from {warmup.disk_percent} % on"
        return f"its disk for images is {node.disk_percent} % full; {limit}"
    return ""


def next_steps(
    desired: Sequence[DesiredImage], observed: Sequence[ObservedImage], pinned_here: Iterable[str]
) -> tuple[ImageStep, ...]:
    """Return an agent's next actions: what it must unpin, what it must pin, and the pulls in their turn.

    Args:
        desired: of the node.
        observed: the node's images; `attempt` is that of the last pull that ended.
        pinned_here: images pinned by Tessera.

    """
    found_by_image = {each.image: each for each in observed}
    keep = {each.image for each in desired if each.pinned}
    steps = [ImageStep("unpin", DesiredImage(image=each)) for each in sorted(set(pinned_here) - keep)]
    for each in desired:
        found = found_by_image.get(each.image)
        if found is not None and _is_right(found, each.digest):
            steps += [ImageStep("pin", each)] if each.pinned and not found.pinned else []
        elif each.attempt > (found.attempt if found else 0):
            steps.append(ImageStep("pull", each))
    return tuple(steps)


def observed_image(
    desired: DesiredImage,
    on_node: ObservedImage | None,
    *,
    pulling: ObservedImage | None,
    ended: ObservedImage | None,
    former: ObservedImage | None,
) -> ObservedImage:
    """Return an agent's report of an image. The number of its last pull never falls.

    Args:
        desired: the image.
        on_node: what the container runtime has under its name, or as `Failed`, why it cannot say; None for nothing.
        pulling: the pull that is going on; None for none.
        ended: the result of the agent's last pull; None for none.
        former: the last report, perhaps of an agent that has ended.

    """
    if pulling is not None:
        return pulling
    attempt = max(0 if each is None else each.attempt for each in (former, ended))
    if desired.unread:
        attempt = max(attempt, desired.attempt)  # its turn ends
    if on_node is not None and on_node.state == "Failed":
        return _unknown(on_node, attempt, former)
    if on_node is not None and _is_right(on_node, desired.digest):
        return msgspec.structs.replace(on_node, attempt=attempt)
    if former is not None and former.state == "Failed" and (ended is None or ended.attempt < former.attempt):
        return former  # of the former agent: it is not repeated before its next turn
    if ended is not None:
        return msgspec.structs.replace(ended, attempt=attempt)
    return ObservedImage(image=desired.image, state="Missing", attempt=attempt)


def _unknown(on_node: ObservedImage, attempt: int, former: ObservedImage | None) -> ObservedImage:
    """Return the report of an image whose state the container runtime cannot say: a pull that ends so has failed."""
    last = former or ObservedImage(image=on_node.image, state="Missing")
    if last.attempt < attempt or last.state == "Pulling":
        return msgspec.structs.replace(on_node, attempt=attempt, failures=last.failures + 1)
    failed_s = last.failed_s if last.state == "Failed" else on_node.failed_s
    return msgspec.structs.replace(on_node, attempt=attempt, failures=last.failures, failed_s=failed_s)
