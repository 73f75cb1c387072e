"""How many pods a part of an object stands for: factors that are multiplied, each read from a path.

A path is keys with dots between them. `[]` after a key matches each element of a list, `{}` each value of a mapping;
a second path with the same wildcards follows the first one's matches.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from tessera.api.fields import Field
from tessera.api.kubernetes.jobs import QUEUE_LABEL
from tessera.core.workload.need import Toleration

__all__ = [
    "DAEMON_TOLERATIONS",
    "CountedPart",
    "Enabled",
    "Factor",
    "KnativeScale",
    "Parallel",
    "ReplicaFactor",
    "ReplicaGroup",
    "Scale",
    "Unless",
    "follow",
    "places",
]

_EVERY_DAEMON = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
DAEMON_TOLERATIONS = tuple(Toleration(key=key, operator="Exists", effect=effect) for key, effect in _EVERY_DAEMON)
"""The tolerations of every pod of a DaemonSet.

Source: kubernetes `pkg/controller/daemon/util/daemonset_util.go` (`AddOrUpdateDaemonPodTolerations`).
"""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """An autoscaler's bounds for the replicas of a workload."""

    by: str
    """The autoscaler, as `HorizontalPodAutoscaler web`."""
    least: int
    most: int
    from_zero: bool = False
    """Whether it also starts the first replica."""


class CountedPart:
    """One part of an object, with the context of its factors."""

    __slots__ = ("field", "keys", "notes", "others", "root", "scale", "words")

    def __init__(
        self, root: Field, field: Field, keys: tuple[str | int, ...] = (), words: tuple[str, ...] = ()
    ) -> None:
        self.root = root
        """The object."""
        self.field = field
        self.keys = keys
        """The element or key at each wildcard."""
        self.words = words
        """What names those elements."""
        self.scale: Scale | None = None
        self.others: Mapping[tuple[str, str], Field] = {}
        """Templates that the object may refer to, by kind and name."""
        self.notes: list[str] = []
        """Notes on the numbers; filled by the factors."""

    def at(self, path: str) -> Field:
        """Return the field at a path with this part's wildcards."""
        return follow(self.root, path, self.keys)


Factor = Callable[[CountedPart], int]


def follow(root: Field, path: str, keys: tuple[str | int, ...] = ()) -> Field:
    """Return the field at a path with the wildcards in `keys`."""
    field, taken = root, iter(keys)
    for step in path.split(".") if path else ():
        name, each = step.rstrip("[]{}"), step.endswith(("[]", "{}"))
        field = field.get(name)
        if each:
            key = next(taken)
            field = next(each for name, each in _members(field) if name == key)
    return field


def _members(field: Field) -> Iterator[tuple[str | int, Field]]:
    """Yield keys and fields of a mapping, or indices and fields of a list."""
    return enumerate(field.elements()) if isinstance(field.value, list) else field.members()


def places(root: Field, path: str) -> Iterator[CountedPart]:
    """Yield every match of a path, present or not."""
    found = [CountedPart(root, root)]
    for step in path.split(".") if path else ():
        name = step.rstrip("[]{}")
        children = [(place, place.field.get(name)) for place in found]
        if step.endswith("[]"):
            found = [
                CountedPart(root, each, (*place.keys, index), (*place.words, _word(each, str(index))))
                for place, child in children
                for index, each in enumerate(child.elements())
            ]
        elif step.endswith("{}"):
            found = [
                CountedPart(root, each, (*place.keys, key), (*place.words, _word(each, key)))
                for place, child in children
                for key, each in child.members()
            ]
        else:
            found = [CountedPart(root, child, place.keys, place.words) for place, child in children]
    yield from found


def _word(element: Field, otherwise: str) -> str:
    """Return the name of an element of a list."""
    for name in ("name", "groupName"):
        value = element.get(name).value
        if isinstance(value, str):
            return value
    return otherwise


class ReplicaFactor(msgspec.Struct, frozen=True, kw_only=True):
    """The number at `path`, within those at `least` and `most`, if these are given."""

    path: str
    default: int = 1
    least: str = ""
    most: str = ""
    lowest: int = 0
    """The least where the most is given and it is not."""
    bounded: str = ""
    """The truth value without which the bounds do not count."""
    scaled: str = ""
    """The truth value without which the bounds are only bounds, and nothing goes from one to the other."""
    from_zero: bool = False
    """Whether zero is where scaling starts, so that one is planned."""

    def __call__(self, place: CountedPart) -> int:
        """Return the number to plan with."""
        written = place.at(self.path)
        if place.scale is not None and self.path == "spec.replicas":
            return self._autoscaled(place, written, place.scale)
        bounded = not self.bounded or place.at(self.bounded).boolean(default=False)
        most = place.at(self.most) if self.most and bounded else None
        most = most if most is not None and most.present else None
        least = place.at(self.least).integer(self.lowest if most else 0) if self.least and bounded else 0
        number = max(least, written.integer(max(self.default, least)))
        if most is None:
            return number or int(self.from_zero)
        if most.integer() < least:
            raise most.refuse(f"at least the {self.least.rpartition('.')[2]}, {least}")
        start = min(number, most.integer())
        number = start or int(self.from_zero)
        scales = not self.scaled or place.at(self.scaled).boolean(default=False)
        if scales and most.integer() > number:
            lowest = least if self.least else start
            place.notes.append(f"planned with {_replicas(number)}; it scales from {lowest} to {most.integer()}")
        return number

    def _autoscaled(self, place: CountedPart, written: Field, scale: Scale) -> int:
        """Return where an autoscaler starts: at the number written, brought between its bounds.

        0 replicas switch a HorizontalPodAutoscaler off.

        Source: kubernetes `pkg/controller/podautoscaler/horizontal.go` (`reconcileAutoscaler`).
        """
        number = written.integer(self.default)
        if number == 0 and not scale.from_zero:
            return 0
        number = min(max(number, scale.least, 1), scale.most)
        place.notes.append(f"planned with {_replicas(number)}; {scale.by} scales from {scale.least} to {scale.most}")
        return number


def _replicas(number: int) -> str:
    return "1 replica" if number == 1 else f"{number} replicas"


class ReplicaGroup(msgspec.Struct, frozen=True):
    """The pods in a group: the number at `path`, or `over` another; less the leader, where `leader` makes one."""

    path: str
    over: str = ""
    otherwise: str = ""
    """Where the number is if neither of these is given."""
    leader: str = ""

    def __call__(self, place: CountedPart) -> int:
        """Return the number."""
        size = place.at(self.path).integer(1, least=1)
        if self.over:
            size = max(1, size // place.at(self.over).integer(1, least=1))
        if self.otherwise and not place.at(self.path).present and not place.at(self.over).present:
            size = place.at(self.otherwise).integer(1, least=1)
        return size - 1 if self.leader and place.at(self.leader).present else size


class Parallel(msgspec.Struct, frozen=True):
    """The pods that a Job, whose spec is at `path`, runs at once. Source: k8s.io/api batch/v1 `JobSpec`."""

    path: str

    def __call__(self, place: CountedPart) -> int:
        """Return the number."""
        parallelism = place.at(f"{self.path}.parallelism").integer(1)
        completions = place.at(f"{self.path}.completions")
        number = min(parallelism, completions.integer()) if completions.present else parallelism
        return number * Unless(f"{self.path}.suspend")(place)


class Unless(msgspec.Struct, frozen=True):
    """None while the truth value at `path` is set, unless Kueue takes it away."""

    path: str

    def __call__(self, place: CountedPart) -> int:
        """Return 1, or 0 where it is suspended."""
        if not place.at(self.path).boolean(default=False):
            return 1
        if place.root.get("metadata", "labels", QUEUE_LABEL).present:
            place.notes.append("suspended until Kueue admits it; planned as admitted")
            return 1
        suspended = f"suspended ({self.path.rpartition('.')[2]}: true)"
        of_one = "[]" in self.path or "{}" in self.path
        one = f"{'-'.join(place.words)} is {suspended}, so no pod of it is planned"
        place.notes.append(one if of_one else f"{suspended}, so no pod is planned")
        return 0


class Enabled(msgspec.Struct, frozen=True):
    """None where the truth value at `path` is not set."""

    path: str

    def __call__(self, place: CountedPart) -> int:
        """Return 1, or 0 where it is not enabled."""
        if place.at(self.path).boolean(default=False):
            return 1
        place.notes.append(f"{'-'.join(place.words)} is not enabled, so no pod is planned")
        return 0


class KnativeScale(msgspec.Struct, frozen=True):
    """The pods of a Knative revision whose template is at `path`: `min-scale`, else `initial-scale`, at least one.

    Source: knative/serving `config/core/configmaps/autoscaler.yaml`.
    """

    path: str

    def __call__(self, place: CountedPart) -> int:
        """Return the number."""
        annotations = place.at(f"{self.path}.metadata.annotations")
        numbers = {}
        for name in ("min", "initial", "max"):
            for key in (f"autoscaling.knative.dev/{name}-scale", f"autoscaling.knative.dev/{name}Scale"):
                if annotations.get(key).present:
                    numbers[name] = _written(annotations.get(key))
        number = max(1, numbers.get("min", 0), numbers.get("initial", 1))
        most = numbers.get("max", 0)
        if most and most != number:
            number = min(number, most)
            place.notes.append(f"planned with {_replicas(number)}; it scales from {numbers.get('min', 0)} to {most}")
        return number


def _written(annotation: Field) -> int:
    text = annotation.text()
    if not (text.isascii() and text.isdecimal() and len(text) < len(str(1 << 31))):
        raise annotation.refuse("a number of pods in quotes")
    return int(text)
