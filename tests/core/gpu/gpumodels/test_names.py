"""Models and profiles are found by every name they go by, and by no other."""

import re

import pytest

from tessera.core.gpu.gpumodels import CATALOG, GpuModel, Profile, is_profile, meant, model, profile, same_profile
from tessera.errors import InvalidInput

A30, A100_40, A100_80, H100 = model("A30-24GB"), model("A100-40GB"), model("A100-80GB"), model("H100-80GB")
GB200, RTX_PRO_6000, RTX_PRO_5000 = model("GB200-186GB"), model("RTX-PRO-6000"), model("RTX-PRO-5000")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("H100-80GB", "H100-80GB", id="catalog name"),
        pytest.param(" h100-80gb ", "H100-80GB", id="any case, blanks around"),
        pytest.param("NVIDIA A30", "A30-24GB", id="as the driver prints it"),
        pytest.param("Tesla-T4", "T4", id="label of an older product"),
        pytest.param("NVIDIA-A10", "A10", id="label of a product without MIG"),
        pytest.param("NVIDIA-A100-SXM4-40GB", "A100-40GB", id="label"),
        pytest.param("NVIDIA-A100-SXM4-40GB-SHARED", "A100-40GB", id="label of a shared GPU"),
        pytest.param("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-80GB", id="label under MIG strategy single"),
        pytest.param("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED", "A100-80GB", id="both suffixes"),
        pytest.param("NVIDIA-A100-SXM4-80GB-MIG-INVALID", "A100-80GB", id="label of mixed slices under single"),
        pytest.param("NVIDIA-A100-80GB-PCIe", "A100-80GB", id="memory before the form factor"),
        pytest.param("NVIDIA-H100-80GB-HBM3", "H100-80GB", id="label with the memory's kind"),
        pytest.param("NVIDIA-H100-NVL", "H100-94GB", id="NVL has more memory"),
        pytest.param("NVIDIA-H200", "H200-141GB", id="H200"),
        pytest.param("NVIDIA-GH200-480GB", "H100-96GB", id="the number of GH200 is the processor's memory"),
        pytest.param("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTX-PRO-6000-Blackwell-96GB", id="RTX PRO"),
        pytest.param("nvidia-tesla-t4", "T4", id="GKE T4"),
        pytest.param("nvidia-tesla-p4", "P4", id="GKE P4"),
        pytest.param("nvidia-tesla-p100", "P100", id="GKE P100"),
        pytest.param("nvidia-tesla-v100", "V100-16GB", id="GKE V100"),
        pytest.param("nvidia-tesla-a100", "A100-40GB", id="GKE A100"),
        pytest.param("nvidia-a100-80gb", "A100-80GB", id="GKE A100 80 GB"),
        pytest.param("nvidia-h100-80gb", "H100-80GB", id="GKE H100"),
        pytest.param("nvidia-h100-mega-80gb", "H100-80GB", id="GKE H100 mega"),
        pytest.param("nvidia-h200-141gb", "H200-141GB", id="GKE H200"),
        pytest.param("nvidia-b200", "B200-180GB", id="GKE B200"),
        pytest.param("nvidia-gb200", "GB200-186GB", id="GKE GB200"),
        pytest.param("nvidia-l4", "L4", id="GKE L4"),
        pytest.param("nvidia-rtx-pro-6000", "RTX-PRO-6000-Blackwell-96GB", id="GKE RTX PRO 6000"),
        pytest.param("V100M32", "V100-32GB", id="as the openb traces call it"),
        pytest.param("0x233010DE", "H100-80GB", id="PCI device id"),
        pytest.param("0x20b010de", "A100-40GB", id="PCI device id in lower case"),
    ],
)
def test_a_model_is_found_by(text: str, want: str) -> None:
    assert model(text).name == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("A100", "did you mean A100-40GB or A100-80GB?", id="a name that fits two memory sizes"),
        pytest.param("H100", "did you mean H100-80GB, H100-94GB or H100-96GB?", id="a name that fits three"),
        pytest.param("H100-80G", "did you mean H100-80GB or A100-80GB?", id="a slip of the pen"),
        pytest.param("Radeon Pro", "use T4, L4, A100-40GB, H100-80GB or another;", id="nothing close"),
        pytest.param("", "use T4, L4, A100-40GB, H100-80GB or another;", id="no name"),
        pytest.param("-MIG-1g.10gb", "use T4, L4, A100-40GB, H100-80GB or another;", id="only a suffix"),
    ],
)
def test_a_model_is_refused_with_what_comes_close_for(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        model(text)
    assert str(caught.value).startswith(f"GPU model: '{text}' is not a GPU model")
    assert f": {want} `tessera profiles` lists all" in str(caught.value)


def test_no_name_is_used_by_two_models() -> None:
    names = [(name.casefold(), each.name) for each in CATALOG for name in (each.name, *each.aliases, *each.pci)]
    assert len({name for name, _ in names}) == len(names)
    assert [model(name).name for name, _ in names] == [owner for _, owner in names]


@pytest.mark.parametrize(
    ("gpu", "text", "want"),
    [
        pytest.param(H100, "1g.10gb", "1g.10gb", id="its name"),
        pytest.param(H100, "1G.10GB ", "1g.10gb", id="any case, blanks around"),
        pytest.param(H100, "mig-1g.10gb", "1g.10gb", id="with mig-"),
        pytest.param(H100, "nvidia.com/mig-3g.40gb", "3g.40gb", id="resource name"),
        pytest.param(H100, "1g.10gb+me", "1g.10gb+me", id="with media engines"),
        pytest.param(H100, "nvidia.com/mig-1g.10gb.me", "1g.10gb+me", id="resource name with media engines"),
        pytest.param(RTX_PRO_6000, "mig-2g.48gb.me.all", "2g.48gb+me.all", id="resource name with all media engines"),
        pytest.param(RTX_PRO_6000, "mig-1g.24gb-me", "1g.24gb-me", id="without media engines"),
        pytest.param(RTX_PRO_6000, "4g.96gb.gfx", "4g.96gb+gfx", id="with graphics"),
        pytest.param(A100_80, "3g.39gb", "3g.40gb", id="3g of another driver"),
        pytest.param(A100_80, "7g.79gb", "7g.80gb", id="7g of another driver"),
        pytest.param(GB200, "1g.24gb", "1g.23gb", id="1g of another driver"),
        pytest.param(GB200, "1g.24gb+me", "1g.23gb+me", id="1g+me of another driver"),
        pytest.param(GB200, "3g.95gb", "3g.93gb", id="3g of GB200"),
        pytest.param(GB200, "7g.189gb", "7g.186gb", id="7g of GB200"),
        pytest.param(RTX_PRO_5000, "2g.24gb-me", "2g.24gb-me", id="one without known placements"),
    ],
)
def test_a_profile_is_found_by(gpu: GpuModel, text: str, want: str) -> None:
    assert profile(gpu, text).name == want


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        pytest.param(A100_40, "1g.6gb", id="the neighbor's memory"),
        pytest.param(A100_40, "4g.10gb", id="other slices"),
        pytest.param(A100_40, "2g.10gb+me", id="media engines this one does not have"),
        pytest.param(A100_40, "1c.3g.20gb", id="a compute instance"),
        pytest.param(A100_40, "", id="nothing"),
        pytest.param(A100_40, "1g.5gb+", id="a dangling plus"),
        pytest.param(A30, "1g.24gb", id="too large for one slice"),
    ],
)
def test_a_profile_is_refused_with_what_the_model_offers(gpu: GpuModel, text: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(", ".join(each.name for each in gpu.profiles))) as caught:
        profile(gpu, text)
    assert f"MIG profile of {gpu.name}: '{text}'" in str(caught.value)


def test_a_profile_is_one_where_some_model_has_it() -> None:
    names = {each.name for gpu in CATALOG for each in gpu.profiles}
    assert all(is_profile(name) and is_profile(f"nvidia.com/mig-{name.replace('+', '.')}") for name in names)
    assert is_profile("3g.39gb")  # as other drivers print 3g.40gb
    assert not any(is_profile(name) for name in ("", "1g", "1g.11gb", "9g.80gb", "1g.10gb.x", "0g.10gb", "all"))


# Keyed by a sentence: two names, and whether they may mean one profile.
NAMES: dict[str, tuple[str, str, bool]] = {
    "one name": ("1g.10gb", "nvidia.com/mig-1g.10gb", True),
    "with media engines, as profile and as resource": ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me", True),
    "as another driver prints it": ("3g.40gb", "3g.39gb", True),
    "as others print it, of a model that the catalog lacks": ("3g.301gb", "3g.300gb", True),
    "two products' own": ("3g.47gb", "3g.48gb", False),
    "the neighbor's memory": ("1g.10gb", "1g.20gb", False),
    "other slices": ("3g.40gb", "4g.39gb", False),
    "other attributes": ("3g.39gb", "3g.40gb+me", False),
    "a name that is no profile's": ("3g.40gb", "all-balanced", False),
    "one word": ("all-balanced", "all-balanced", True),
}


@pytest.mark.parametrize(("text", "other", "want"), NAMES.values(), ids=NAMES)
def test_two_names_may_mean_one_profile(text: str, other: str, want: bool) -> None:
    assert same_profile(text, other) is same_profile(other, text) is want


@pytest.mark.parametrize("gpu", [each for each in CATALOG if each.profiles], ids=lambda each: each.name)
def test_whatever_a_name_means_has_the_same_profile(gpu: GpuModel) -> None:
    names = {each.name for other in CATALOG for each in other.profiles}
    names |= {re.sub(r"\d+gb", f"{gb}gb", name) for name in names for gb in range(1, 300, 7)}
    for name in names:
        found = meant(gpu, name)
        assert found is None or same_profile(found.name, name)
        if name in {each.name for each in gpu.profiles}:
            assert found is not None
            assert all(same_profile(name, each.name) is (each is found) for each in gpu.profiles)


def test_a_long_name_is_cut_in_the_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        model("x" * 10_000)
    assert len(str(caught.value)) < 300


def test_a_model_without_mig_says_so() -> None:
    with pytest.raises(InvalidInput, match="choose another model: it has no MIG"):
        profile(model("T4"), "1g.10gb")


@pytest.mark.parametrize("gpu", [each for each in CATALOG if each.profiles], ids=lambda each: each.name)
def test_no_profile_name_is_ambiguous_on(gpu: GpuModel) -> None:
    """Every name that could be printed means one profile of a model or none."""

    def found(text: str) -> list[Profile]:
        try:
            return [profile(gpu, text)]
        except InvalidInput:
            return []

    suffixes = {re.sub(r"^\d+g\.\d+gb", "", each.name) for each in gpu.profiles}
    for slices in range(1, 8):
        for suffix in suffixes:
            hits = [(gb, each) for gb in range(1, 300) for each in found(f"{slices}g.{gb}gb{suffix}")]
            for name in {each.name for _, each in hits}:
                sizes = [gb for gb, other in hits if other.name == name]
                own = int(re.findall(r"\d+", name)[1])
                assert own in sizes
                assert all(abs(gb - own) * 20 <= own for gb in sizes)
    for each in gpu.profiles:
        assert profile(gpu, each.name) is each
        assert profile(gpu, f"nvidia.com/mig-{each.name.replace('+', '.')}") is each
