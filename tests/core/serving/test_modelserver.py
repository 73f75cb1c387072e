"""What follows from what a user asks of a model server."""

from typing import Any

import msgspec
import pytest

from tessera.core.serving.modelserver import GpuRequest, ModelLocation, ModelServer, ModelServerSpec, ReplicaSpec


def server(replicas: dict[str, int], **model: Any) -> ModelServer:
    spec = ModelServerSpec(
        engine="vllm",
        image="i",
        model=ModelLocation(**model),
        gpu=GpuRequest(memory_gib=8),
        replicas=msgspec.convert(replicas, ReplicaSpec),
    )
    return ModelServer(name="chat", namespace="ns", spec=spec)


@pytest.mark.parametrize(
    ("replicas", "want"),
    [
        ({}, (1, 1, False, False)),
        ({"min": 3}, (3, 3, False, False)),
        ({"min": 2, "max": 5}, (2, 5, True, False)),
        ({"min": 0}, (0, 1, True, True)),
        ({"min": 0, "max": 4}, (0, 4, True, True)),
    ],
)
def test_how_many_replicas_there_may_be(replicas: dict[str, int], want: tuple[int, int, bool, bool]) -> None:
    got = server(replicas, claim="c")
    assert (got.min_replicas, got.max_replicas, got.scaled, got.scales_to_zero) == want


def test_a_models_name_is_given_or_the_caches_or_the_servers() -> None:
    assert server({}, claim="c", name="given").model == "given"
    assert server({}, cache="cached").model == "cached"
    assert server({}, claim="c").model == "chat"
