"""When two desired models are the same files."""

from typing import Any

from tessera.core.storage.models.nodemodels import DesiredModel


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


def test_priority_pins_and_intervals_fetch_nothing_anew() -> None:
    assert model("a", priority=3, pinned=True, interval_s=9, keep=1).identity == model("a").identity
    others = (model("b"), model("a", secret="s"), model("a", revision="1" * 64), model("a", exclude=("x",)))
    assert model("a").identity not in {each.identity for each in others}
