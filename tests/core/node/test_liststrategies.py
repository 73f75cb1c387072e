"""How a node hands devices to containers."""

import itertools
from typing import get_args

import pytest

from tessera.core.node.liststrategies import (
    CdiSupport,
    DeviceInjection,
    ListStrategies,
    list_strategies,
    read_strategies,
)
from tessera.core.node.nodesharing import ListStrategy


@pytest.mark.parametrize("strategy", get_args(ListStrategy))
def test_what_is_fixed_when_the_pod_is_not_known_yet(strategy: ListStrategy) -> None:
    how = DeviceInjection(strategies=(strategy,))
    assert how.cdi is (not how.fixed_at_allocate) is strategy.startswith("cdi")
    assert DeviceInjection(strategies=(strategy, "envvar")).fixed_at_allocate


def test_devices_are_named_by_index_where_that_is_set_and_no_cdi_names_their_uuids() -> None:
    """Every set of strategies."""
    all_of_them: tuple[ListStrategy, ...] = get_args(ListStrategy)
    for count in range(len(all_of_them) + 1):
        for strategies in itertools.combinations(all_of_them, count):
            assert not DeviceInjection(strategies=strategies).names_by_index
            by_cdi = any(each.startswith("cdi") for each in strategies)
            assert DeviceInjection(strategies=strategies, by_index=True).names_by_index is not by_cdi


def support(
    runtime: str = "containerd://2.4.2", kubelet: str = "v1.36.3", *, enabled: bool | None = None, spec: bool = True
) -> CdiSupport:
    return CdiSupport(runtime=runtime, kubelet=kubelet, enabled=enabled, driver_spec=spec)


BY_CDI = {
    "containerd 2": support(),
    "the first containerd 2, of a distribution": support("containerd://2.0.0-rc.3-k3s1"),
    "containerd 1.7 with enable_cdi": support("containerd://1.7.24", enabled=True),
    "CRI-O": support("cri-o://1.34.1"),
    "CRI-O, whatever a containerd beside it says": support("cri-o://1.34.1", enabled=False),
    "the first kubelet with it": support(kubelet="v1.29.0"),
    "a kubelet of a provider": support(kubelet="v1.33.4-gke.1134000"),
}


@pytest.mark.parametrize("case", BY_CDI)
def test_a_node_that_can_hands_over_by_cdi(case: str) -> None:
    assert list_strategies((), BY_CDI[case]) == ListStrategies(strategies=("cdi-cri",))


BY_ENVIRONMENT = {
    "containerd 1.7": (support("containerd://1.7.24"), "containerd://1.7.24 has CDI off by default: upgrade to 2.0"),
    "a containerd that knows no CDI": (support("containerd://1.6.20", enabled=True), "CDI off by default"),
    "containerd 2 with CDI off": (support(enabled=False), "set enable_cdi = true"),
    "an old CRI-O": (support("cri-o://1.22.0"), "cri-o://1.22.0 has CDI off by default: upgrade to 1.23"),
    "Docker": (support("docker://28.0.1"), "docker://28.0.1 does not support CDI devices"),
    "an old kubelet": (support(kubelet="v1.28.15"), "kubelet v1.28.15 does not pass CDI devices: upgrade it to 1.29"),
    "versions that are none": (support("containerd://devel"), "containerd://devel has CDI off"),
    "no specification of the driver": (support(spec=False), "run nvidia-ctk cdi generate"),
    "a Node that says nothing": (CdiSupport(), "the Node object does not say"),
}


@pytest.mark.parametrize("case", BY_ENVIRONMENT)
def test_a_node_that_cannot_hands_over_by_the_environment_and_says_why(case: str) -> None:
    given, want = BY_ENVIRONMENT[case]
    chosen = list_strategies((), given)
    assert chosen.strategies == ("envvar",)
    assert want in f"{chosen.fallback}: {chosen.advice}"


@pytest.mark.parametrize("given", [support(), CdiSupport()])
def test_what_is_configured_wins(given: CdiSupport) -> None:
    for strategies in (("envvar",), ("cdi-cri",), ("volume-mounts", "cdi-annotations")):
        assert list_strategies(strategies, given) == ListStrategies(strategies=strategies)


# sentence: (what the node has, the strategies in force, those from now on)
KEPT: dict[str, tuple[CdiSupport, tuple[ListStrategy, ...], ListStrategy]] = {
    "containerd has ended, and the kubelet does not know its version": (
        support("containerd://Unknown"),
        ("cdi-cri",),
        "cdi-cri",
    ),
    "the same, as the kubelet writes it without a name": (support("Unknown"), ("cdi-cri",), "cdi-cri"),
    "the same, where devices are handed over by the environment": (
        support("containerd://Unknown"),
        ("envvar",),
        "envvar",
    ),
    "the Node object says nothing for a moment": (CdiSupport(), ("cdi-cri",), "cdi-cri"),
    "the driver's specification is being written anew": (support(spec=False), ("cdi-cri",), "cdi-cri"),
    "the same, with another way of CDI": (support(spec=False), ("cdi-annotations",), "cdi-cri"),
    "containerd has ended on a node that never had a strategy": (support("containerd://Unknown"), (), "envvar"),
    "containerd was downgraded": (support("containerd://1.7.24"), ("cdi-cri",), "envvar"),
    "what was lacking is there": (support(), ("envvar",), "cdi-cri"),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_a_node_does_not_say_for_a_moment_changes_nothing(case: str) -> None:
    support, former, want = KEPT[case]
    assert list_strategies((), support, former).strategies == (want,)
    assert list_strategies(("volume-mounts",), support, former).strategies == ("volume-mounts",)


@pytest.mark.parametrize("strategy", get_args(ListStrategy))
def test_strategies_are_read_as_they_were_written(strategy: ListStrategy) -> None:
    assert read_strategies(strategy) == (strategy,)
    assert read_strategies(f"{strategy},from-a-later-version,") == (strategy,)
    assert read_strategies("") == ()
