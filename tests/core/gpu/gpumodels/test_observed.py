"""What the driver reports corrects the catalog, and every difference is reported."""

import msgspec
import pytest

from tessera.core.gpu.gpumodels import (
    CATALOG,
    GpuModel,
    ObservedGpu,
    ObservedProfile,
    architecture,
    model,
    observed_model,
)
from tessera.core.gpu.mig import maximal_counts


def shown(gpu: GpuModel, **changes: object) -> ObservedGpu:
    """Return a GPU exactly as the catalog has it, but for some fields."""
    seen = ObservedGpu(
        product=f"NVIDIA {gpu.name}",
        memory_mib=gpu.memory_mib,
        mig=bool(gpu.profiles),
        profiles=tuple(
            ObservedProfile(
                name=each.name,
                profile_id=each.profile_id or 0,
                compute_slices=each.compute_slices,
                max_instances=each.max_instances,
                memory_mib=each.memory_mib,
                multiprocessors=each.sm or 0,
                media_engines=each.media != "none",
                places=tuple((start, each.size) for start in each.starts),
            )
            for each in gpu.profiles
        ),
    )
    return msgspec.structs.replace(seen, **changes)


def with_profile(seen: ObservedGpu, own: str, **changes: object) -> ObservedGpu:
    """Return a GPU of which one profile is shown otherwise."""
    profiles = tuple(msgspec.structs.replace(each, **changes) if each.name == own else each for each in seen.profiles)
    return msgspec.structs.replace(seen, profiles=profiles)


A100 = model("A100-40GB")
AS_IS = shown(A100)


@pytest.mark.parametrize(
    "gpu", [each for each in CATALOG if None not in {p.profile_id for p in each.profiles}], ids=lambda each: each.name
)
def test_what_is_as_in_the_catalog_is_the_catalogs_entry(gpu: GpuModel) -> None:
    found, notes = observed_model(shown(gpu))
    assert found is gpu
    assert notes == ()


@pytest.mark.parametrize(
    ("case", "seen", "want"),
    [
        ("other memory", shown(A100, memory_mib=40536), "40536 MiB of memory, 40960 in the catalog"),
        ("no MIG in a virtual machine", shown(A100, mig=False, profiles=()), "no MIG, which the catalog has"),
        ("an old driver lists nothing with MIG off", shown(A100, profiles=()), "the catalog's are used"),
        (
            "a driver that does not know some profiles yet",
            shown(A100, profiles=tuple(each for each in AS_IS.profiles if each.name not in {"1g.10gb", "1g.5gb+me"})),
            "no profile 1g.5gb+me, 1g.10gb, which the catalog has",
        ),
        (
            "other starts",
            with_profile(AS_IS, "2g.10gb", places=((0, 2), (4, 2))),
            "profile 2g.10gb with starts 0, 4, 0, 2, 4 in the catalog",
        ),
        (
            "other memory of a profile",
            with_profile(AS_IS, "1g.5gb", memory_mib=4750),
            "profile 1g.5gb with MiB of memory 4750, 4864 in the catalog",
        ),
        (
            "another name for the same",
            with_profile(AS_IS, "3g.20gb", name="3g.21gb"),
            "profile 3g.20gb with the name 3g.21gb, 3g.20gb in the catalog",
        ),
    ],
)
def test_a_difference_is_reported(case: str, seen: ObservedGpu, want: str) -> None:
    _, notes = observed_model(seen)
    assert len(notes) == 1, case
    assert want in notes[0], case


def test_the_drivers_word_is_taken() -> None:
    seen = with_profile(shown(A100, memory_mib=40536), "2g.10gb", places=((4, 2), (0, 2)))
    found, _ = observed_model(seen)
    assert (found.name, found.memory_mib) == ("A100-40GB", 40536)
    assert next(each.starts for each in found.profiles if each.name == "2g.10gb") == (0, 4)
    assert [each.name for each in found.profiles] == [each.name for each in A100.profiles]


def test_what_listings_round_is_filled_in_silently() -> None:
    found, notes = observed_model(with_profile(AS_IS, "2g.10gb", memory_mib=9856))
    assert next(each.memory_mib for each in found.profiles if each.name == "2g.10gb") == 9856
    assert notes == ()


def test_without_mig_no_profile_is_left() -> None:
    found, _ = observed_model(shown(A100, mig=False))
    assert (found.profiles, found.memory_slices) == ((), 0)


def test_a_profile_goes_by_the_drivers_name() -> None:
    found, _ = observed_model(with_profile(shown(model("H100-96GB")), "3g.48gb", name="3g.47gb"))
    assert "3g.47gb" in {each.name for each in found.profiles}
    assert "3g.48gb" not in {each.name for each in found.profiles}


def test_what_was_estimated_is_filled_in_silently() -> None:
    gpu = model("RTX-PRO-5000")
    seen = shown(gpu, memory_mib=47000)
    small = with_profile(seen, "1g.12gb", memory_mib=11000, profile_id=19, places=((0, 1), (1, 1)))
    found, notes = observed_model(small)
    first = found.profiles[0]
    assert (first.memory_mib, first.profile_id, first.starts, first.size) == (11000, 19, (0, 1), 1)
    assert (first.memory_known, first.placement) == (True, "observed")
    assert all("1g.12gb " not in note for note in notes)


def test_a_new_profile_of_a_known_product_is_taken() -> None:
    extra = ObservedProfile(
        name="2g.10gb+gfx",
        profile_id=77,
        compute_slices=2,
        max_instances=1,
        memory_mib=9856,
        multiprocessors=28,
        media_engines=True,
    )
    found, notes = observed_model(shown(A100, profiles=(*AS_IS.profiles, extra)))
    added = found.profiles[-1]
    assert (added.name, added.graphics, added.media, added.placement) == ("2g.10gb+gfx", True, "default", "unknown")
    assert (added.starts, added.size) == ((), 0)
    assert notes == ("profile 2g.10gb+gfx, which the catalog does not have",)


def test_a_product_is_known_by_its_pci_id_too() -> None:
    found, _ = observed_model(shown(A100, product="NVIDIA Graphics Device", pci="0x20B010DE"))
    assert found is A100


@pytest.mark.parametrize("name", ["A100-40GB", "RTX-PRO-6000-Blackwell-96GB", "A30-24GB"])
def test_an_unknown_product_behaves_as_the_driver_shows_it(name: str) -> None:
    gpu = model(name)
    found, notes = observed_model(shown(gpu, product="NVIDIA X100", pci="0x999910DE", compute_capability=(9, 0)))
    assert (found.name, found.arch, found.memory_mib, found.memory_slices) == (
        "X100",
        "Hopper",
        gpu.memory_mib,
        gpu.memory_slices,
    )
    assert found.compute_slices == gpu.compute_slices
    assert found.pci == ("0x999910DE",)
    assert found.at_most_one == gpu.at_most_one
    assert [(each.name, each.media) for each in found.profiles] == [(each.name, each.media) for each in gpu.profiles]
    assert maximal_counts(found) == maximal_counts(gpu)
    assert notes == ("it is not in the catalog: its model is read from the driver",)


def test_an_unknown_product_without_mig_is_memory_alone() -> None:
    found, _ = observed_model(ObservedGpu(product="NVIDIA X10", memory_mib=1000))
    assert (found.name, found.arch, found.profiles, found.memory_slices, found.pci) == ("X10", "unknown", (), 0, ())


@pytest.mark.parametrize(
    ("capability", "want"),
    [
        ((5, 2), "Maxwell"),
        ((6, 1), "Pascal"),
        ((7, 0), "Volta"),
        ((7, 5), "Turing"),
        ((8, 6), "Ampere"),
        ((8, 9), "Ada Lovelace"),
        ((9, 0), "Hopper"),
        ((10, 0), "Blackwell"),
        ((10, 3), "Blackwell Ultra"),
        ((12, 0), "Blackwell"),
        ((0, 0), "unknown"),
    ],
)
def test_an_architecture_follows_from_the_compute_capability(capability: tuple[int, int], want: str) -> None:
    assert architecture(capability) == want
