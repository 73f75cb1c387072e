"""Which node pulls which image next, before pods need it.

A node pulls an image when it has its *turn*. Turns are given in the order of demand: images of pending pods, most pods
first, then the others in the order listed. A turn lasts until the node reports the end of the pull; so many are given
at once that no node and no registry has more than its limit. A pull that failed gets another turn after a while, which
doubles each time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

__all__ = [
    "DesiredImage",
    "ImageSummary",
    "NodeImages",
    "ObservedImage",
    "Problem",
    "Step",
    "Summary",
    "Turn",
    "Warmup",
    "back_off_s",
    "next_steps",
    "plan",
    "summary",
]

_UNSEEN_S = 120.0
"""A turn of which a node says nothing for so long is over: no agent runs there."""
_LONGEST_S = 3600.0
"""A turn that lasts longer is over: another node has use for it."""
_FIRST_BACK_OFF_S, _LONGEST_BACK_OFF_S = 10.0, 600.0
_MOST_PROBLEMS = 16


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """Images that some nodes shall have."""

    name: str
    images: tuple[str, ...]
    """Full names, in the order in which they are pulled."""
    nodes: frozenset[str]
    """The nodes that it selects."""
    per_node: int = 1
    """Images that a node pulls at once."""
    per_registry: int = 10
    """Pulls from one registry at once, by all nodes together."""
    disk_percent: int = 80
    """A node whose disk for images is at least so full pulls nothing."""
    pinned: bool = True
    """Whether the kubelet's garbage collection shall spare them."""
    secrets: tuple[str, ...] = ()
    """Secrets with credentials."""
    digests: tuple[tuple[str, str], ...] = ()
    """What images were resolved to."""

    def is_full(self, node: "NodeImages") -> bool:
        """Return whether a node that it selects has too little disk left."""
        return node.name in self.nodes and node.disk_percent >= self.disk_percent


class DesiredImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a node shall have."""

    image: str
    digest: str = ""
    """What its name was resolved to, on the node that pulled it first; empty before."""
    pinned: bool = False
    secrets: tuple[str, ...] = ()
    attempt: int = 0
    """Number of the pull that has its turn, or had it last; 0 for none."""


class ObservedImage(msgspec.Struct, frozen=True, kw_only=True):
    """What a node reports of an image."""

    image: str
    state: Literal["Missing", "Pulling", "Present", "Failed"]
    digest: str = ""
    bytes: int = 0
    """On disk."""
    pinned: bool = False
    attempt: int = 0
    """Number of the last pull that began."""
    failed_s: float = 0.0
    """When it failed, in seconds since 1970."""
    reason: str = ""


class NodeImages(msgspec.Struct, frozen=True, kw_only=True):
    """A node, what it was told last and what it reports."""

    name: str
    ready: bool = True
    desired: tuple[DesiredImage, ...] = ()
    observed: tuple[ObservedImage, ...] = ()
    disk_percent: int = 0
    """How full the disk is on which its images lie."""


class Turn(msgspec.Struct, frozen=True):
    """A pull that has its turn, for the time that it was given: what a controller remembers."""

    node: str
    image: str
    attempt: int


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node has not an image."""

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


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A warmup on all of its nodes, of bounded size."""

    nodes: int = 0
    ready: int = 0
    """Nodes that have all images."""
    pulling: int = 0
    """Nodes that pull one of them."""
    pinned: int = 0
    """Nodes that have all of them pinned."""
    images: tuple[ImageSummary, ...] = ()
    problems: tuple[Problem, ...] = ()
    """The first of them."""


class Step(msgspec.Struct, frozen=True):
    """What an agent does next about an image."""

    kind: Literal["pull", "pin", "unpin"]
    image: DesiredImage


def back_off_s(attempts: int) -> float:
    """Return how long after a failure there is no other turn."""
    return min(_FIRST_BACK_OFF_S * 2.0 ** min(attempts - 1, 16), _LONGEST_BACK_OFF_S)


def plan(
    warmups: Sequence[Warmup],
    nodes: Sequence[NodeImages],
    demand: Mapping[str, int],
    turns: Mapping[Turn, float],
    now_s: float,
) -> dict[str, tuple[DesiredImage, ...]]:
    """Return what each node shall have, and whose turn it is; the same again where nothing changed.

    Args:
        warmups: in the order of their names.
        nodes: those that any of them selects, and those that were told something before.
        demand: number of pending pods by the image that they need.
        turns: when each turn was given that is remembered; one that is not counts from now.
        now_s: seconds since 1970.

    """
    desired = {node.name: _listed(warmups, node) for node in nodes}
    # 1. Keep the turns that are not over.
    pulls = Counter[str]()
    registries = Counter[str]()
    for node in nodes:
        running = [each for each in desired[node.name] if _lasts(node, each, turns, now_s)]
        pulls[node.name] = len(running)
        registries.update(_registry(each.image) for each in running)
    # 2. Give the others, in the order of demand.
    waiting = [
        (-demand.get(image.image, 0), place, attempt, node.name)
        for node in nodes
        if not any(each.is_full(node) for each in warmups)
        for place, image in enumerate(desired[node.name])
        if (attempt := _due(node, image, turns, now_s))
    ]
    for _, place, attempt, name in sorted(waiting):
        image = desired[name][place]
        mine = [each for each in warmups if name in each.nodes]
        served = [each for each in warmups if _registry(image.image) in map(_registry, each.images)]
        free = pulls[name] < min(each.per_node for each in mine)
        if free and registries[_registry(image.image)] < min(each.per_registry for each in served):
            pulls[name] += 1
            registries[_registry(image.image)] += 1
            given = msgspec.structs.replace(image, attempt=attempt)
            desired[name] = (*desired[name][:place], given, *desired[name][place + 1 :])
    return desired


def _registry(image: str) -> str:
    return image.partition("/")[0]


def _listed(warmups: Sequence[Warmup], node: NodeImages) -> tuple[DesiredImage, ...]:
    """Return the images of all warmups that select a node, with the attempts that it was told."""
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
    return tuple(found.values())


def _seen(node: NodeImages, image: DesiredImage) -> ObservedImage:
    unknown = ObservedImage(image=image.image, state="Missing")
    return next((each for each in node.observed if each.image == image.image), unknown)


def _is_right(seen: ObservedImage, image: DesiredImage) -> bool:
    """Return whether a node has an image, with the digest that it shall have."""
    return seen.state == "Present" and image.digest in ("", seen.digest)


def _lasts(node: NodeImages, image: DesiredImage, turns: Mapping[Turn, float], now_s: float) -> bool:
    """Return whether a turn was given for an image and is not over."""
    seen = _seen(node, image)
    begun = seen.attempt >= image.attempt
    ended = begun and seen.state != "Pulling"
    if not image.attempt or not node.ready or ended or _is_right(seen, image):
        return False
    age_s = now_s - turns.get(Turn(node.name, image.image, image.attempt), now_s)
    return age_s < (_LONGEST_S if begun else _UNSEEN_S)


def _due(node: NodeImages, image: DesiredImage, turns: Mapping[Turn, float], now_s: float) -> int:
    """Return the number of the pull that an image could have its turn for now; 0 for none."""
    seen = _seen(node, image)
    if not node.ready or _is_right(seen, image) or _lasts(node, image, turns, now_s):
        return 0
    if seen.state == "Failed" and now_s - seen.failed_s < back_off_s(seen.attempt):
        return 0
    return max(image.attempt, seen.attempt) + 1


def summary(warmup: Warmup, nodes: Sequence[NodeImages], demand: Mapping[str, int]) -> Summary:
    """Return how far a warmup is.

    Args:
        warmup: the warmup.
        nodes: all nodes; those that it does not select are left out.
        demand: number of pending pods by the image that they need.

    """
    mine = [each for each in nodes if each.name in warmup.nodes]
    digests = dict(warmup.digests)
    images = []
    for image in warmup.images:
        have = [each for node in mine for each in node.observed if (each.image, each.state) == (image, "Present")]
        known = Counter(each.digest for each in have if each.digest)
        # Resolved once: by the node that was first, or by most where several were at the same time.
        digest = digests.get(image) or min(known, key=lambda each: (-known[each], each), default="")
        count = sum(each.digest == digest for each in have)
        wanted = demand.get(image, 0)
        images.append(ImageSummary(image=image, digest=digest, nodes=count, pending_pods=wanted))

    def has_all(node: NodeImages, *, pinned: bool) -> bool:
        right = (DesiredImage(image=each.image, digest=each.digest) for each in images)
        return all(_is_right(found := _seen(node, each), each) and (found.pinned or not pinned) for each in right)

    return Summary(
        nodes=len(mine),
        ready=sum(has_all(node, pinned=False) for node in mine),
        pulling=sum(
            any(each.state == "Pulling" for each in node.observed if each.image in warmup.images) for node in mine
        ),
        pinned=sum(has_all(node, pinned=True) for node in mine),
        images=tuple(images),
        problems=tuple(_problems(warmup, mine))[:_MOST_PROBLEMS],
    )


def _problems(warmup: Warmup, nodes: Iterable[NodeImages]) -> Iterable[Problem]:
    for node in nodes:
        if not node.ready:
            yield Problem(node=node.name, image="", reason="the node is not ready")
        elif warmup.is_full(node):
            limit = f"nothing is pulled from {warmup.disk_percent} % on"
            reason = f"its disk for images is {node.disk_percent} % full; {limit}"
            yield Problem(node=node.name, image="", reason=reason)
        for each in node.observed:
            if each.state == "Failed" and each.image in warmup.images:
                yield Problem(node=node.name, image=each.image, reason=each.reason)


def next_steps(
    desired: Sequence[DesiredImage], observed: Sequence[ObservedImage], pinned_here: Iterable[str]
) -> tuple[Step, ...]:
    """Return what an agent does next: what it must unpin, what it must pin, and the pulls that have their turn.

    Args:
        desired: what the node shall have.
        observed: what it has; `attempt` is that of the last pull that ended.
        pinned_here: images that Tessera pinned.

    """
    here = NodeImages(name="", observed=tuple(observed))
    keep = {each.image for each in desired if each.pinned}
    steps = [Step("unpin", DesiredImage(image=each)) for each in sorted(set(pinned_here) - keep)]
    for each in desired:
        found = _seen(here, each)
        if _is_right(found, each):
            steps += [Step("pin", each)] if each.pinned and not found.pinned else []
        elif each.attempt > found.attempt:
            steps.append(Step("pull", each))
    return tuple(steps)
