"""Placements and layouts, against brute force over all sets of placements and against published tables."""

import itertools
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpufacts import at
from tessera.core.gpu.gpumodels import CATALOG, GpuModel, model
from tessera.core.gpu.mig import (
    Counts,
    Layout,
    Placement,
    all_layouts,
    counts_of,
    is_legal,
    mask,
    maximal_counts,
    maximal_layouts,
    named_layouts,
    open_placements,
    place,
    placement_at,
    placements,
    placements_of,
    remaining,
    why_illegal,
)

A30, A100, H100 = model("A30-24GB"), model("A100-40GB"), model("H100-80GB")
RTX_PRO_6000, RTX_PRO_5000, T4 = model("RTX-PRO-6000"), model("RTX-PRO-5000"), model("T4")
MIG_MODELS = tuple(each for each in CATALOG if each.memory_slices)
every_mig_model = pytest.mark.parametrize("gpu", MIG_MODELS, ids=lambda each: each.name)


def restricted(gpu: GpuModel, *names: str) -> GpuModel:
    return msgspec.structs.replace(gpu, profiles=tuple(each for each in gpu.profiles if each.name in names))


COMPUTE = restricted(H100, "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
SMALL = (
    A30,
    COMPUTE,
    restricted(H100, "1g.10gb", "1g.10gb+me", "3g.40gb"),
    restricted(RTX_PRO_6000, "1g.24gb+me.all"),
    restricted(RTX_PRO_6000, "1g.24gb", "1g.24gb+me", "1g.24gb-me", "2g.48gb+me.all", "1g.24gb+me.all"),
)


def brute_force(gpu: GpuModel) -> Iterator[Layout]:
    """Yield every legal set of placements, by the definition: units are taken once, media kinds held once."""
    profiles = {each.name: each for each in gpu.profiles}
    spots = [(each.name, start) for each in gpu.profiles for start in each.starts]
    for count in range(gpu.memory_slices + 1):
        for chosen in itertools.combinations(spots, count):
            units = [unit for name, start in chosen for unit in range(start, start + profiles[name].size)]
            kinds = Counter(str(profiles[name].media) for name, _ in chosen)
            engines = {name for name, _ in chosen if profiles[name].media != "none"}
            greedy = any(name.endswith("+me.all") for name in engines) and len(engines) > 1
            if len(set(units)) == len(units) and all(kinds[kind] <= 1 for kind in gpu.at_most_one) and not greedy:
                yield tuple(sorted(Placement(start, profiles[name].size, name) for name, start in chosen))


def test_placements_are_those_of_the_catalog() -> None:
    assert placements_of(H100, "3g.40gb") == at(H100, ("3g.40gb", 0), ("3g.40gb", 4))
    assert placements_of(H100, "9g.90gb") == ()


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda gpu: gpu.name)
def test_a_placement_is_known_by_profile_and_start(gpu: GpuModel) -> None:
    assert all(placement_at(gpu, each.profile, each.start) == each for each in placements(gpu))
    assert placement_at(gpu, "9g.90gb", 3) == Placement(3, 0, "9g.90gb")
    assert len(placements(H100)) == 7 + 7 + 4 + 3 + 2 + 1 + 1
    assert placements(T4) == placements(RTX_PRO_5000) == ()
    assert list(placements(H100)) == sorted(placements(H100))


def test_the_mask_of_a_layout_is_its_units() -> None:
    assert mask(at(H100, ("3g.40gb", 4), ("1g.10gb", 0))) == 0b1111_0001
    assert mask(()) == 0


@pytest.mark.parametrize(
    ("gpu", "layout", "want"),
    [
        pytest.param(H100, (), None, id="nothing"),
        pytest.param(H100, at(H100, ("4g.40gb", 0), ("3g.40gb", 4)), None, id="4g and 3g"),
        pytest.param(H100, at(H100, ("3g.40gb", 4), ("4g.40gb", 0)), None, id="in any order"),
        pytest.param(
            H100,
            at(H100, ("2g.20gb", 6)),
            "2g.20gb takes 2 memory slices at start 0, 2, 4, not 2 at 6",
            id="2g at the end",
        ),
        pytest.param(
            H100,
            (Placement(0, 3, "3g.40gb"),),
            "3g.40gb takes 4 memory slices at start 0, 4, not 3 at 0",
            id="3g of three units, as a wrong table has it",
        ),
        pytest.param(
            H100,
            at(H100, ("1g.20gb", 0), ("1g.10gb", 1)),
            "1g.20gb at 0 and 1g.10gb at 1 share memory slice 1",
            id="overlap",
        ),
        pytest.param(
            H100,
            at(H100, ("1g.10gb+me", 0), ("1g.10gb+me", 1)),
            "2 instances have the media engines of +me; H100-80GB allows one",
            id="media engines twice",
        ),
        pytest.param(
            A30,
            at(A30, ("1g.6gb+me", 0), ("2g.12gb+me", 2)),
            "2 instances have the media engines of +me; A30-24GB allows one",
            id="media engines twice in two profiles",
        ),
        pytest.param(
            RTX_PRO_6000, at(RTX_PRO_6000, ("1g.24gb+me", 0), ("1g.24gb-me", 3), ("2g.48gb", 6)), None, id="12 units"
        ),
        pytest.param(
            RTX_PRO_6000, at(RTX_PRO_6000, ("1g.24gb+me.all", 0), ("1g.24gb-me", 3), ("2g.48gb-me", 6)), None, id="-me"
        ),
        pytest.param(
            RTX_PRO_6000,
            at(RTX_PRO_6000, ("2g.48gb+me.all", 0), ("1g.24gb+me", 6), ("1g.24gb", 9)),
            "an instance with +me.all has all media engines, and 2 next to it request some",
            id="all media engines and some",
        ),
        pytest.param(A100, at(H100, ("1g.20gb", 0)), "A100-40GB has no profile 1g.20gb", id="another GPU's profile"),
        pytest.param(
            RTX_PRO_5000,
            (Placement(0, 1, "1g.12gb"),),
            "1g.12gb takes 0 memory slices at start not known, not 1 at 0",
            id="placements not known",
        ),
    ],
)
def test_what_is_wrong_with(gpu: GpuModel, layout: Layout, want: str | None) -> None:
    assert why_illegal(gpu, layout) == want
    assert is_legal(gpu, layout) == (want is None)


@pytest.mark.parametrize("gpu", SMALL, ids=lambda each: f"{each.name} {len(each.profiles)} profiles")
def test_all_layouts_and_maximal_layouts_are_those_of_brute_force(gpu: GpuModel) -> None:
    want = set(brute_force(gpu))
    assert set(all_layouts(gpu)) == want
    assert len(all_layouts(gpu)) == len(want)
    full = {one for one in want if not any(set(one) < set(other) for other in want)}
    assert set(maximal_layouts(gpu)) == full


@every_mig_model
def test_layouts_are_all_subsets_that_the_definition_allows(gpu: GpuModel) -> None:
    """Legal by definition, different, closed under removal, and closed under every addition that is open."""
    layouts = set(all_layouts(gpu))
    assert len(layouts) == len(all_layouts(gpu))
    for layout in layouts:
        assert is_legal(gpu, layout)
        assert list(layout) == sorted(layout)
        assert all(tuple(each for each in layout if each != gone) in layouts for gone in layout)
        grown = {tuple(sorted((*layout, each))) for each in placements(gpu) if each not in layout}
        legal = {other for other in grown if is_legal(gpu, other)}
        assert legal <= layouts
        assert {tuple(sorted((*layout, each))) for each in open_placements(gpu, layout)} == legal


@every_mig_model
def test_compute_slices_are_never_overdrawn(gpu: GpuModel) -> None:
    slices = {each.name: each.compute_slices for each in gpu.profiles}
    assert max(sum(slices[each.profile] for each in layout) for layout in all_layouts(gpu)) == gpu.compute_slices


@every_mig_model
def test_the_most_instances_of_one_profile_are_as_published(gpu: GpuModel) -> None:
    assert remaining(gpu, ()) == {each.name: each.max_instances for each in gpu.profiles}


def test_a_gpu_without_known_placements_has_only_the_empty_layout() -> None:
    assert all_layouts(T4) == maximal_layouts(T4) == all_layouts(RTX_PRO_5000) == ((),)
    assert remaining(RTX_PRO_5000, ())["1g.12gb"] == 0
    assert remaining(T4, ()) == {}


def test_an_h100_has_28_maximal_counts_of_its_compute_profiles() -> None:
    counts = maximal_counts(COMPUTE)
    assert len(counts) == 28
    assert (("7g.80gb", 1),) in counts
    assert {(("1g.10gb", 7),), (("1g.10gb", 6), ("1g.20gb", 1)), (("3g.40gb", 1), ("4g.40gb", 1))} <= set(counts)
    assert (("1g.10gb", 3), ("3g.40gb", 1)) not in counts, "more fits beside them"


@pytest.mark.parametrize("gpu", SMALL, ids=lambda each: f"{each.name} {len(each.profiles)} profiles")
def test_maximal_counts_are_those_no_other_layout_dominates(gpu: GpuModel) -> None:
    found = {
        tuple(Counter(each.profile for each in layout)[p.name] for p in gpu.profiles) for layout in brute_force(gpu)
    }
    want = {
        one
        for one in found
        if not any(one != more and all(a <= b for a, b in zip(one, more, strict=True)) for more in found)
    }
    names = [each.name for each in gpu.profiles]
    assert {tuple(dict(counts).get(name, 0) for name in names) for counts in maximal_counts(gpu)} == want


def layouts_of(gpu: GpuModel) -> st.SearchStrategy[Layout]:
    return st.sampled_from(all_layouts(gpu))


@given(st.sampled_from(MIG_MODELS).flatmap(lambda gpu: st.tuples(st.just(gpu), layouts_of(gpu))))
def test_what_remains_can_be_placed_and_one_more_cannot(case: tuple[GpuModel, Layout]) -> None:
    gpu, layout = case
    for name, count in remaining(gpu, layout).items():
        grown = place(gpu, {name: count}, layout)
        assert grown is not None
        assert is_legal(gpu, grown)
        assert place(gpu, {name: count + 1}, layout) is None


@given(
    st.sampled_from(SMALL).flatmap(
        lambda gpu: st.tuples(
            st.just(gpu),
            layouts_of(gpu),
            st.dictionaries(st.sampled_from([each.name for each in gpu.profiles]), st.integers(0, 4)),
        )
    )
)
def test_placing_is_exact(case: tuple[GpuModel, Layout, dict[str, int]]) -> None:
    """An answer is legal, keeps what it must and adds what was asked; none means brute force finds none."""
    gpu, keep, counts = case
    want = Counter(counts) + Counter(each.profile for each in keep)
    possible = [
        layout
        for layout in all_layouts(gpu)
        if set(keep) <= set(layout) and Counter(each.profile for each in layout) == want
    ]
    found = place(gpu, counts, keep)
    assert (found is None) == (not possible)
    if found is not None:
        assert found in possible
        most_open = max(len(open_placements(gpu, layout)) for layout in possible)
        assert len(open_placements(gpu, found)) == most_open


@pytest.mark.parametrize(
    ("counts", "keep", "want"),
    [
        pytest.param({"3g.40gb": 2}, (), at(H100, ("3g.40gb", 0), ("3g.40gb", 4)), id="two halves"),
        pytest.param({"1g.10gb": 1}, (), at(H100, ("1g.10gb", 6)), id="a small one goes where it blocks least"),
        pytest.param({"4g.40gb": 1}, at(H100, ("1g.10gb", 0)), None, id="4g starts only at 0"),
        pytest.param({"4g.40gb": 1, "9g.90gb": 1}, (), None, id="an unknown profile"),
        pytest.param({"4g.40gb": 0}, (), (), id="nothing"),
        pytest.param(
            {"2g.20gb": 1},
            at(H100, ("3g.40gb", 4), ("1g.10gb", 1)),
            at(H100, ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)),
            id="beside what is kept",
        ),
    ],
)
def test_placing(counts: dict[str, int], keep: Layout, want: Layout | None) -> None:
    assert place(H100, counts, keep) == want


@pytest.mark.parametrize(
    ("gpu", "name", "want"),
    [
        (A100, "all-disabled", ()),
        (A100, "all-enabled", ()),
        (A100, "all-1g.5gb", (("1g.5gb", 7),)),
        (A100, "all-1g.5gb.me", (("1g.5gb+me", 1),)),
        (A100, "all-1g.10gb", (("1g.10gb", 4),)),
        (A100, "all-7g.40gb", (("7g.40gb", 1),)),
        (A100, "all-balanced", (("1g.5gb", 2), ("2g.10gb", 1), ("3g.20gb", 1))),
        (A30, "all-balanced", (("1g.6gb", 2), ("2g.12gb", 1))),
        (H100, "all-1g.10gb", (("1g.10gb", 7),)),
        (H100, "all-1g.20gb", (("1g.20gb", 4),)),
        (H100, "all-balanced", (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1))),
        (model("H200"), "all-balanced", (("1g.18gb", 2), ("2g.35gb", 1), ("3g.71gb", 1))),
        (model("B200"), "all-balanced", (("1g.23gb", 2), ("2g.45gb", 1), ("3g.90gb", 1))),
        (RTX_PRO_6000, "all-balanced", (("1g.24gb", 2), ("2g.48gb", 1))),
        (RTX_PRO_6000, "all-1g.24gb-me", (("1g.24gb-me", 4),)),
        (RTX_PRO_6000, "all-1g.24gb.me.all", (("1g.24gb+me.all", 1),)),
        (T4, "all-disabled", ()),
    ],
)
def test_named_layouts_are_those_of_mig_parted(gpu: GpuModel, name: str, want: Counts) -> None:
    """Source: NVIDIA/mig-parted, deployments/systemd/config-default.yaml."""
    assert named_layouts(gpu)[name] == want


def test_a_gpu_without_known_placements_can_only_be_disabled() -> None:
    assert dict(named_layouts(RTX_PRO_5000)) == dict(named_layouts(T4)) == {"all-disabled": ()}


@every_mig_model
def test_every_named_layout_can_be_placed(gpu: GpuModel) -> None:
    for counts in named_layouts(gpu).values():
        layout = place(gpu, dict(counts))
        assert layout is not None
        assert counts_of(gpu, layout) == counts
