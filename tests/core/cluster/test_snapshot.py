"""Shares made of what serves a request, and of devices that exist."""

import pytest

from builders.fleets import A100, T4, gpu
from builders.gpufacts import at
from builders.requests import exact
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.sharing import Mode, Sharing

ONE = at(A100, ("1g.5gb", 2))


@pytest.mark.parametrize(
    ("modes", "layout", "want"),
    [
        ((Mode.WHOLE,), None, (Mode.WHOLE, None, None)),
        ((Mode.MIG,), ONE, (Mode.MIG, "1g.5gb", 2)),
    ],
)
def test_a_share_of_a_device_is_at_its_place(
    modes: tuple[Mode, ...], layout: tuple[object, ...] | None, want: tuple[object, ...]
) -> None:
    a_gpu = gpu(3, A100, Sharing(modes=modes, layout=ONE if layout else None))
    device = next(each for each in a_gpu.devices if each.mode is modes[0])
    made = Share.of_device(3, device, "r")
    assert (made.gpu, made.resource, made.memory_mib) == (3, "r", device.memory_mib)
    assert (made.mode, made.profile, made.start) == want


def test_a_share_that_serves_a_request_has_the_resource_of_the_device_or_of_the_request() -> None:
    request = exact(1, "nvidia.com/gpu")
    (option,) = gpu(0, T4).options(request)
    made = Share.of(0, request, option)
    assert (made.resource, made.container, made.isolation) == (
        "nvidia.com/gpu",
        request.container,
        Mode.WHOLE.isolation,
    )
