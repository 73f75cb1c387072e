"""When two desired models are the same files."""

from typing import Any

from tessera.core.storage.models.nodemodels import DesiredModel


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


def test_priority_pins_and_intervals_fetch_nothing_anew() -> None:
    assert model("a", priority=3, pinned=True, interval_s=9, keep=1).identity == model("a").identity
    changes: tuple[dict[str, Any], ...] = (
        *({"endpoint": "https://e"}, {"region": "r"}, {"secret": "s"}, {"revision": "1" * 64}),
        *({"include": ("x",)}, {"exclude": ("x",)}, {"verification": "Required"}),
    )
    others = (model("b"), *(model("a", **each) for each in changes))
    assert model("a").identity not in {each.identity for each in others}


def test_a_model_that_was_fetched_before_there_was_a_rule_of_checksums_is_not_fetched_anew() -> None:
    assert model("a").identity == "03509b95afde24a8"
