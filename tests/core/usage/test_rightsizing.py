"""What would fit a container."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import usagereports
from builders.usage import GPU, allocation
from builders.usagereports import BUSY, FINE, REPORT
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.readings import GpuReading, ProcessReading
from tessera.core.usage.activity import UNUSED_MIB
from tessera.core.usage.attribution import GpuUsage, Owner, attribute_usage
from tessera.core.usage.containerhistory import Histories, update_histories
from tessera.core.usage.observation import NodeUsage
from tessera.core.usage.rightsizing import Advice, ObservedUsage, Sizing, advice_of, advise, recommendations
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport, usage_report

A100, H100, T4 = model("A100-40GB"), model("H100-80GB"), model("T4")
HALF = next(each.memory_mib for each in H100.profiles if each.name == "4g.40gb")
SMALL, LARGE, WHOLE = (
    next(each.memory_mib for each in A100.profiles if each.name == name) for name in ("1g.5gb", "3g.20gb", "7g.40gb")
)


def whole(
    allocated_mib: int | None, peak_mib: int | None, mean_percent: float | None = 5.0, observed_s: float = 900
) -> ObservedUsage:
    return ObservedUsage(
        whole=True, allocated_mib=allocated_mib, peak_mib=peak_mib, mean_percent=mean_percent, observed_s=observed_s
    )


def part(allocated_mib: int | None, peak_mib: int | None, mean_percent: float | None = 5.0) -> ObservedUsage:
    return msgspec.structs.replace(whole(allocated_mib, peak_mib, mean_percent), whole=False, part=1 / 7)


def loaded(percent: float | None, observed_s: float, peak_mib: int = 4000) -> ObservedUsage:
    return ObservedUsage(allocated_mib=SMALL, peak_mib=peak_mib, mean_percent=percent, observed_s=observed_s)


def amount(allocated_mib: int, peak_mib: int) -> ObservedUsage:
    return ObservedUsage(amount=True, allocated_mib=allocated_mib, peak_mib=peak_mib, observed_s=900)


def replica(peak_mib: int, mean_percent: float | None = 50.0, observed_s: float = 90_000) -> ObservedUsage:
    """Return one of four replicas of an A100."""
    return ObservedUsage(
        replica=True, allocated_mib=10240, peak_mib=peak_mib, mean_percent=mean_percent, observed_s=observed_s
    )


BUSY_H100 = ObservedUsage(
    whole=True, allocated_mib=H100.memory_mib, peak_mib=5000, mean_percent=97, observed_s=14 * 86_400
)

CASES: dict[str, tuple[ObservedUsage, GpuModel | None, Advice]] = {
    "a replica of which little is used: smaller it would free nothing": (
        replica(2048),
        A100,
        Advice(verdict=Sizing.FITS),
    ),
    "a replica with unknown load on an unknown GPU": (replica(2048, None), None, Advice(verdict=Sizing.FITS)),
    "a replica of which nothing is used": (replica(0), A100, Advice(verdict=Sizing.UNUSED)),
    "an instance without a process, of which the driver reports a little": (
        part(SMALL, 14, None),
        A100,
        Advice(verdict=Sizing.UNUSED, saved_mib=SMALL),
    ),
    "a large instance without a process": (part(LARGE, 14), A100, Advice(verdict=Sizing.UNUSED, saved_mib=LARGE)),
    "a GPU without a process": (whole(80000, UNUSED_MIB), H100, Advice(verdict=Sizing.UNUSED, saved_mib=80000)),
    "an instance with the smallest context of CUDA": (part(SMALL, 72, None), A100, Advice(verdict=Sizing.FITS)),
    "a replica that computes nothing": (replica(2048, 1.0), A100, Advice(verdict=Sizing.IDLE)),
    "a replica that uses more than its part: an amount of memory is kept for it": (
        replica(12000),
        A100,
        Advice(verdict=Sizing.TOO_LITTLE, fits="15 GiB"),
    ),
    "a whole GPU for what a small instance holds": (
        whole(A100.memory_mib, 3000),
        A100,
        Advice(verdict=Sizing.TOO_MUCH, fits="1g.5gb", saved_mib=A100.memory_mib - SMALL),
    ),
    "an instance that is as small as can be": (part(SMALL, 3000), A100, Advice(verdict=Sizing.FITS)),
    "an instance that is nearly full": (
        part(SMALL, SMALL - 10),
        A100,
        Advice(verdict=Sizing.TOO_LITTLE, fits="1g.10gb"),
    ),
    "a GPU that is nearly full": (
        whole(A100.memory_mib, A100.memory_mib - 10),
        A100,
        Advice(verdict=Sizing.TOO_LITTLE),
    ),
    "a GPU without MIG, of which little is used": (
        whole(T4.memory_mib, 820),
        T4,
        Advice(verdict=Sizing.TOO_MUCH, fits="1 GiB", saved_mib=T4.memory_mib - 1024),
    ),
    "a GPU without MIG, of which most is used": (whole(T4.memory_mib, 14000), T4, Advice(verdict=Sizing.FITS)),
    "a GPU without MIG that is nearly full": (
        whole(T4.memory_mib, T4.memory_mib),
        T4,
        Advice(verdict=Sizing.TOO_LITTLE),
    ),
    "a GPU with MIG, of which more is used than an instance of a part of it has": (
        whole(A100.memory_mib, 25000),
        A100,
        Advice(verdict=Sizing.TOO_MUCH, fits="30 GiB", saved_mib=10240),
    ),
    "an instance that is all of the GPU": (
        part(WHOLE, 25000),
        A100,
        Advice(verdict=Sizing.FITS),
    ),
    "a GPU of an unknown model": (whole(40000, 1000), None, Advice(verdict=Sizing.UNKNOWN)),
    "an instance of a GPU of an unknown model": (part(4864, 1000), None, Advice(verdict=Sizing.UNKNOWN)),
    "memory that fits, and no load for a day": (loaded(4.9, 86_400), A100, Advice(verdict=Sizing.IDLE)),
    "no load for less than a day": (loaded(0.0, 86_399), A100, Advice(verdict=Sizing.FITS)),
    "a little load for a day": (loaded(5.0, 86_400), A100, Advice(verdict=Sizing.FITS)),
    "no load for a day, of which it was known for an hour": (
        msgspec.structs.replace(loaded(0.0, 86_400), load_observed_s=3600),
        A100,
        Advice(verdict=Sizing.FITS),
    ),
    "a whole GPU whose load was known for a minute": (
        msgspec.structs.replace(BUSY_H100, mean_percent=0.0, load_observed_s=60),
        H100,
        Advice(verdict=Sizing.TOO_MUCH, fits="1g.10gb", saved_mib=H100.memory_mib - 9984, load_unknown=True),
    ),
    "unknown load for a day": (loaded(None, 86_400), A100, Advice(verdict=Sizing.FITS)),
    "nothing used at all for a day": (loaded(0.0, 86_400, 0), A100, Advice(verdict=Sizing.UNUSED, saved_mib=SMALL)),
    "a GPU of an unknown model without load for a day": (loaded(0.0, 86_400), None, Advice(verdict=Sizing.IDLE)),
    "a whole GPU whose memory is hardly used and whose compute is": (BUSY_H100, H100, Advice(verdict=Sizing.FITS)),
    "a whole GPU of which half of the compute is used": (
        msgspec.structs.replace(BUSY_H100, mean_percent=40),
        H100,
        Advice(verdict=Sizing.TOO_MUCH, fits="4g.40gb", saved_mib=H100.memory_mib - HALF),
    ),
    "a whole GPU whose load no instance covers, but leaves some to others": (
        msgspec.structs.replace(BUSY_H100, mean_percent=70),
        H100,
        Advice(verdict=Sizing.TOO_MUCH, fits="6 GiB", saved_mib=H100.memory_mib - 6144),
    ),
    "a GPU without MIG whose compute is used": (whole(T4.memory_mib, 820, 97), T4, Advice(verdict=Sizing.FITS)),
    "a whole GPU of unknown load": (
        msgspec.structs.replace(BUSY_H100, mean_percent=None),
        H100,
        Advice(verdict=Sizing.TOO_MUCH, fits="1g.10gb", saved_mib=H100.memory_mib - 9984, load_unknown=True),
    ),
    "an instance whose compute is used": (
        ObservedUsage(part=3 / 7, allocated_mib=LARGE, peak_mib=3000, mean_percent=90, observed_s=900),
        A100,
        Advice(verdict=Sizing.FITS),
    ),
    "a nearly full instance whose compute is used": (
        part(SMALL, SMALL - 10, 95),
        A100,
        Advice(verdict=Sizing.TOO_LITTLE, fits="2g.10gb"),
    ),
    "a nearly full instance of unknown load": (
        part(SMALL, SMALL - 10, None),
        A100,
        Advice(verdict=Sizing.TOO_LITTLE, fits="1g.10gb", load_unknown=True),
    ),
    "an amount is not limited in compute": (
        msgspec.structs.replace(amount(8192, 2000), mean_percent=99),
        H100,
        Advice(verdict=Sizing.TOO_MUCH, fits="3 GiB", saved_mib=5120),
    ),
    "an amount that needs more than the GPU has": (
        amount(12 * 1024, 12 * 1024),
        msgspec.structs.replace(T4, memory_mib=14 * 1024 + 500),
        Advice(verdict=Sizing.TOO_LITTLE, fits="14 GiB"),
    ),
    "an amount that needs more than the GPU is known to have": (
        msgspec.structs.replace(amount(12 * 1024, 12 * 1024), gpu_mib=13 * 1024),
        T4,
        Advice(verdict=Sizing.TOO_LITTLE, fits="13 GiB"),
    ),
    "an amount that is all of the GPU": (
        msgspec.structs.replace(amount(14 * 1024, 14 * 1024), gpu_mib=15 * 1024 - 1),
        None,
        Advice(verdict=Sizing.TOO_LITTLE),
    ),
    "an amount of which little is used": (
        amount(8192, 2000),
        None,
        Advice(verdict=Sizing.TOO_MUCH, fits="3 GiB", saved_mib=5120),
    ),
    "an amount that is just enough": (amount(3072, 2400), None, Advice(verdict=Sizing.FITS)),
    "an amount that was used up": (amount(2048, 2048), None, Advice(verdict=Sizing.TOO_LITTLE, fits="3 GiB")),
    "nothing was used": (whole(LARGE, 0), A100, Advice(verdict=Sizing.UNUSED, saved_mib=LARGE)),
    "nothing was used in less than 15 minutes": (whole(LARGE, 0, observed_s=899), A100, Advice(verdict=Sizing.UNKNOWN)),
    "little was used in less than 15 minutes": (
        whole(LARGE, 3000, observed_s=899),
        A100,
        Advice(verdict=Sizing.UNKNOWN),
    ),
    "nearly all was used in less than 15 minutes": (
        whole(SMALL, SMALL, observed_s=10),
        A100,
        Advice(verdict=Sizing.TOO_LITTLE, fits="1g.10gb"),
    ),
    "94 % of it was used": (amount(10240, 9625), A100, Advice(verdict=Sizing.FITS)),
    "96 % of it was used": (amount(10240, 9831), A100, Advice(verdict=Sizing.TOO_LITTLE, fits="12 GiB")),
    "64 MiB were in use, less than any context of CUDA": (
        part(SMALL, 64, None),
        A100,
        Advice(verdict=Sizing.UNUSED, saved_mib=SMALL),
    ),
    "65 MiB were in use": (part(SMALL, 65, None), A100, Advice(verdict=Sizing.FITS)),
    "nobody knows what was used": (whole(LARGE, None), A100, Advice(verdict=Sizing.UNKNOWN)),
    "nobody knows what was allocated": (whole(None, 7), A100, Advice(verdict=Sizing.UNKNOWN)),
}


@pytest.mark.parametrize("case", CASES)
def test_advice(case: str) -> None:
    observed, known, want = CASES[case]
    assert advise(observed, known) == want


@pytest.mark.parametrize("media", ["me", "none", "all"])
def test_profiles_with_other_media_engines_are_left_to_pods_that_request_them(media: str) -> None:
    """Whatever the order of the profiles: those of the same size differ by their engines alone."""
    usual = tuple(each for each in H100.profiles if each.media in {"default", "full"})
    others = tuple(msgspec.structs.replace(each, name=f"{each.name}+x", media=media) for each in usual)
    mixed = msgspec.structs.replace(H100, profiles=others + usual)
    assert advise(whole(80000, 5000, 5.0), mixed).fits == "1g.10gb"


@given(
    st.sampled_from([A100, H100]),
    st.data(),
    st.integers(1, 90_000),
    st.integers(1, 90_000),
    st.floats(0, 100),
)
def test_no_part_is_advised_whose_compute_is_below_the_mean_load(
    known: GpuModel, data: st.DataObject, allocated_mib: int, peak_mib: int, mean_percent: float
) -> None:
    parts = {each.name: each.compute_slices / known.compute_slices for each in known.profiles}
    now = data.draw(st.sampled_from(["", *parts]))
    observed = ObservedUsage(
        whole=not now,
        part=parts.get(now, 1.0),
        allocated_mib=allocated_mib,
        peak_mib=peak_mib,
        mean_percent=mean_percent,
        observed_s=900,
    )
    advice = advise(observed, known)
    load = mean_percent / 100 * parts.get(now, 1.0)
    assert not advice.load_unknown
    assert parts.get(advice.fits, 1.0) >= load
    if "GiB" in advice.fits:
        assert load < 1 / 1.2, "others find compute beside it"


@given(st.integers(1, 80_000), st.integers(0, 80_000), st.sampled_from(["amount", "whole", "part"]))
def test_what_is_advised_is_20_percent_above_the_peak(allocated_mib: int, peak_mib: int, kind: str) -> None:
    observed = ObservedUsage(
        amount=kind == "amount",
        whole=kind == "whole",
        allocated_mib=allocated_mib,
        peak_mib=peak_mib,
        observed_s=900,
    )
    advice = advise(observed, A100)
    assert 0 <= advice.saved_mib <= allocated_mib
    if advice.verdict is Sizing.TOO_MUCH:
        left_mib = allocated_mib - advice.saved_mib
        assert left_mib >= peak_mib * 1.2
        assert advice.saved_mib > 0


def test_recommendations_are_those_of_all_containers_the_most_urgent_first() -> None:
    found = [
        (each.gpu, each.device, each.pod, each.verdict.value, each.saved_mib) for each in recommendations([REPORT])
    ]
    assert found == [
        (0, "whole", "train", "too-little", 0),
        (0, "whole", "notebook", "unused", 8192),
        (1, "whole", "serve", "too-much", 36096),
        (2, "1g.5gb", "fine", "fits", 0),
    ]


@pytest.mark.parametrize(
    ("peaks_mib", "want"),
    [
        ((16_000, 16_000), ["fits", "fits"]),
        ((16_000, 0), ["unused", "fits"]),
        ((16_000, H100.memory_mib), ["too-little", "fits"]),
        ((16_000,), ["too-much 3g.40gb"]),
    ],
)
def test_a_container_with_several_whole_gpus_is_told_no_part_of_one(
    peaks_mib: tuple[int, ...], want: list[str]
) -> None:
    own = msgspec.structs.replace(usagereports.SMALL, exclusive=True, allocated_mib=H100.memory_mib, mean_percent=30.0)
    gpus = (
        GpuReport(
            index=index,
            model="H100-80GB",
            devices=(DeviceReport(containers=(msgspec.structs.replace(own, peak_mib=peak_mib),)),),
        )
        for index, peak_mib in enumerate(peaks_mib)
    )
    found = recommendations([UsageReport(node="n1", gpus=tuple(gpus))])
    assert [f"{each.verdict} {each.fits}".strip() for each in found] == want


@pytest.mark.parametrize(
    ("peaks_mib", "want"),
    [
        ((15_000, 4000), ["0 too-much 18 GiB 15000", "1 too-much 18 GiB 15000"]),
        ((20_200, 4000), ["0 too-little 24 GiB 20200", "1 too-little 24 GiB 20200"]),
        ((15_000, 0), ["1 unused  0", "0 too-much 18 GiB 15000"]),
        ((None, 4000), ["0 unknown  4000", "1 unknown  4000"]),
        ((None, None), ["0 unknown  None", "1 unknown  None"]),
    ],
)
def test_shares_of_one_request_are_told_one_size(peaks_mib: tuple[int | None, ...], want: list[str]) -> None:
    """`gpu-count: 2` is one amount for two GPUs."""
    own = msgspec.structs.replace(usagereports.SMALL, exclusive=False, allocated_mib=20480, observed_s=9000)
    gpus = (
        GpuReport(
            index=index,
            model="A100-40GB",
            devices=(DeviceReport(containers=(msgspec.structs.replace(own, peak_mib=peak_mib),)),),
        )
        for index, peak_mib in enumerate(peaks_mib)
    )
    found = recommendations([UsageReport(node="n1", gpus=tuple(gpus))])
    assert [f"{each.gpu} {each.verdict} {each.fits} {each.peak_mib}" for each in found] == want


@pytest.mark.parametrize(("mean_percent", "load_s"), [(None, 90_000.0), (2.0, 3600.0), (50.0, 90_000.0)])
def test_a_request_is_idle_if_all_its_devices_are_known_to_be(mean_percent: float | None, load_s: float) -> None:
    own = msgspec.structs.replace(
        usagereports.SMALL, exclusive=False, allocated_mib=4096, peak_mib=3300, mean_percent=1.0, observed_s=90_000.0
    )
    other = msgspec.structs.replace(own, mean_percent=mean_percent, load_observed_s=load_s)

    def verdicts(*containers: ContainerReport) -> set[Sizing]:
        gpus = (GpuReport(index=0, devices=(DeviceReport(containers=(each,)),)) for each in containers)
        return {each.verdict for each in recommendations([UsageReport(node="n1", gpus=tuple(gpus))])}

    assert verdicts(own, own) == {Sizing.IDLE}
    assert verdicts(own, other) == {Sizing.FITS}


def test_advice_is_by_the_gpu_s_model_where_it_is_known() -> None:
    assert advice_of(usagereports.SMALL, DeviceReport(), GpuReport(index=1, model="A100-40GB")).fits == "1g.5gb"
    assert (
        advice_of(usagereports.SMALL, DeviceReport(), GpuReport(index=1, model="something")).verdict is Sizing.UNKNOWN
    )
    assert advice_of(BUSY, DeviceReport(), GpuReport(index=0, model="T4")).fits == "10 GiB"
    assert advice_of(FINE, DeviceReport(profile="1g.5gb"), GpuReport(index=0, model="A100-40GB")).verdict is Sizing.FITS


def test_a_container_whose_usage_was_known_in_one_sample_of_a_day_is_not_judged() -> None:
    """One process of its neighbor cannot be attributed: after the first sample the memory of both is unknown."""
    victim, neighbor = (allocation(name, allocated_mib=20480) for name in ("victim", "neighbor"))
    processes = (ProcessReading(pid=1, memory_mib=19000, sm_percent=40), ProcessReading(pid=2, memory_mib=400))
    owners = {1: Owner(uid=victim.uid, container=victim.container)}
    histories: Histories = {}
    uses: list[GpuUsage] = []
    for look in range(5760):
        busy = GpuReading(memory_used_mib=19400, gpu_percent=99, processes=processes)
        reading = busy if look else GpuReading(memory_used_mib=0, gpu_percent=0, processes=())
        uses = [attribute_usage(GPU, reading, [victim, neighbor], owners)]
        histories = update_histories(histories, uses, look * 15.0)
    report = usage_report(NodeUsage(node="n", gpus=tuple(uses)), histories)
    assert {(each.pod, each.peak_mib, each.verdict) for each in recommendations([report])} == {
        ("victim", 0, Sizing.UNKNOWN),
        ("neighbor", 0, Sizing.UNKNOWN),
    }


def test_the_load_of_an_instance_is_of_its_part_of_the_gpu() -> None:
    busy = msgspec.structs.replace(FINE, peak_mib=4800, mean_percent=95)
    on = DeviceReport(profile="1g.5gb")
    assert advice_of(busy, on, GpuReport(index=0, model="A100-40GB")).fits == "2g.10gb"
    other = advice_of(busy, DeviceReport(profile="1g.7gb"), GpuReport(index=0, model="A100-40GB"))
    assert (other.fits, other.load_unknown) == ("1g.10gb", True), "this GPU has no such part"
    assert advice_of(busy, on, GpuReport(index=0, model="something")).fits == ""
