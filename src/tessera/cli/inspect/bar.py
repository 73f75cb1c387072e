"""A GPU as one line of text, to scale: MIG instances on its axis, shares by their memory, free memory."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

from tessera.cli.drawing.lettering import clean
from tessera.cli.drawing.palette import tone
from tessera.core.explain.inspection import GpuInspection, InspectedShare, InspectedSlices
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.units import gib

__all__ = ["FREE", "LEGEND", "bar", "signs"]

FREE = "\u2591"
_EDGE = "\u2502"
_UNUSED, _DESIRED, _CLASH = "-", "?", "!"
LEGEND = {
    FREE: "free",
    _UNUSED: "unused MIG instance",
    _DESIRED: "MIG instance to be created",
    _CLASH: "allocated twice",
}
"""The legend of a bar."""
_PALE = Style(dim=True)
_ALARM = Style(bold=True, reverse=True)


class _Piece(NamedTuple):
    """A part of the line."""

    extent: int
    """Characters, including its edge."""
    words: tuple[str, ...]
    """Possible texts, longest first."""
    filler: str = " "
    style: Style = _PALE


def bar(gpu: GpuInspection, room: int, numbers: Mapping[str, int]) -> Text:
    """Return the line.

    Args:
        gpu: the GPU.
        room: available characters; a line takes no more, and whole memory slices if MIG is drawn.
        numbers: the number of each pod, which selects its color.

    """
    pieces = _instances(gpu, room, numbers) if gpu.slices else _shares(gpu, room, numbers)
    line = Text(no_wrap=True).append(_EDGE, _PALE)
    for piece in pieces:
        inside = piece.extent - 1
        if inside < 0:
            continue
        word = next((each for each in piece.words if len(each) <= inside), "")
        line.append(word.ljust(inside, piece.filler), piece.style)
        line.append(_EDGE, _PALE)
    return line


def signs(gpu: GpuInspection) -> set[str]:
    """Return the signs that the bar of a GPU may show, for a legend."""
    states = {each.state for each in gpu.slices}
    found = {sign for state, sign in (("unused", _UNUSED), ("desired", _DESIRED), ("free", FREE)) if state in states}
    if not gpu.slices and gpu.allocated_mib < gpu.memory_mib:
        found.add(FREE)
    return found | ({_CLASH} if any(len(each) > 1 for each in _owners(gpu)) else set())


def _owners(gpu: GpuInspection) -> list[list[InspectedSlices]]:
    """Return for each memory slice the MIG instances on it."""
    return [
        [each for each in gpu.slices if each.start <= number < each.start + each.size]
        for number in range(gpu.memory_slices)
    ]


def _instances(gpu: GpuInspection, room: int, numbers: Mapping[str, int]) -> Iterator[_Piece]:
    step = max(1, (room - 1) // max(gpu.memory_slices, 1))
    owners = _owners(gpu)
    first = 0
    while first < len(owners):
        last = first
        while last + 1 < len(owners) and owners[last + 1] == owners[first]:
            last += 1
        extent = step * (last + 1 - first)
        clash = _Piece(extent, (), _CLASH, _ALARM)
        yield clash if len(owners[first]) > 1 else _instance(owners[first][0], extent, numbers)
        first = last + 1


def _instance(instance: InspectedSlices, extent: int, numbers: Mapping[str, int]) -> _Piece:
    names = (instance.profile, instance.profile.partition(".")[0], instance.profile[:1])
    if instance.state == "free":
        return _Piece(extent, ("",), FREE)
    if instance.state != "allocated":
        sign = _UNUSED if instance.state == "unused" else _DESIRED
        return _Piece(extent, (*(f"{sign} {name}" for name in names[:2]), sign))
    pods = [clean(pod.rpartition("/")[2]) for pod in instance.pods]
    many = f" {len(pods)} pods" if len(pods) > 1 else f" {pods[0]}"
    return _Piece(extent, (f"{names[0]}{many}", *names), " ", _color(instance.pods[0], numbers))


def _shares(gpu: GpuInspection, room: int, numbers: Mapping[str, int]) -> Iterator[_Piece]:
    """Yield the shares of a GPU, as wide as their memory, and the rest."""
    whole = room - 1
    total = max(gpu.memory_mib, gpu.allocated_mib, 1)
    given = 0
    edge = 0
    for holder in gpu.pods:
        given += holder.share.memory_mib
        upto = min(whole, max(edge + 2, whole * given // total))
        if upto > edge:
            yield _share(holder, upto - edge, numbers)
        edge = max(edge, upto)
    if edge < whole and given < gpu.memory_mib:
        yield _Piece(whole - edge, ("",), FREE)


def _share(holder: InspectedShare, extent: int, numbers: Mapping[str, int]) -> _Piece:
    pod = clean(holder.pod.rpartition("/")[2])
    size = "whole" if holder.share.mode is Mode.WHOLE else gib(holder.share.memory_mib)
    words = (f"{size} {pod}", size, size.partition(" ")[0])
    return _Piece(extent, words, " ", _color(holder.pod, numbers))


def _color(pod: str, numbers: Mapping[str, int]) -> Style:
    look = tone(numbers.get(pod, 0))
    return Style(color=look.ink, bgcolor=look.fill)
