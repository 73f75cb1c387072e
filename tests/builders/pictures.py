"""What tests read of a picture of a plan: its elements by class, and where they lie."""

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from builders.scenes import Scene
from tessera.cli.drawing.sheet import svg

SVG = "{http://www.w3.org/2000/svg}"
TOLERANCE = 0.02
"""Coordinates are written with two decimals."""


def drawn(scene: Scene, heading: str = "A plan") -> ET.Element:
    return ET.fromstring(svg(scene.plan, scene.snapshot, title=heading))


def placed(element: ET.Element, x: float = 0, y: float = 0) -> Iterator[tuple[ET.Element, float, float]]:
    """Give all elements with the origin of their coordinates on the sheet."""
    move = re.match(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
    if move:
        x, y = x + float(move[1]), y + float(move[2])
    yield element, x, y
    if element.tag == f"{SVG}svg" and element.get("x"):
        x, y = x + float(element.get("x", 0)), y + float(element.get("y", 0))
    for child in element:
        yield from placed(child, x, y)


def classed(root: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in root.iter() if element.get("class") == name]


def box(element: ET.Element, x: float, y: float) -> tuple[float, float, float, float]:
    left, top, wide, high = (float(element.get(name, 0)) for name in ("x", "y", "width", "height"))
    return x + left, y + top, x + left + wide, y + top + high


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide > TOLERANCE and high > TOLERANCE


def within(inner: tuple[float, ...], outer: tuple[float, ...]) -> bool:
    return (
        inner[0] >= outer[0] - TOLERANCE
        and inner[1] >= outer[1] - TOLERANCE
        and inner[2] <= outer[2] + TOLERANCE
        and inner[3] <= outer[3] + TOLERANCE
    )
