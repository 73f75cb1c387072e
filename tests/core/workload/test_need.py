"""Needs: what a pod must be given over its whole life, against Kubernetes' own step-by-step formula."""

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.requests import exact, gpushare, need
from tessera.core.workload.need import ContainerNeed, DeviceRequest, Form, Isolation, effective_need, reused

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.10gb"


def box(*requests: DeviceRequest, cpu: int = 0, memory: int = 0, sidecar: bool = False) -> ContainerNeed:
    return ContainerNeed(cpu=Fraction(cpu), memory=Fraction(memory), requests=requests, sidecar=sidecar)


ASKS = {
    "containers ask side by side": ([box(exact(1, container="a")), box(exact(2, container="b"))], [], "ab", [1, 2]),
    "an init container reuses their devices": (
        [box(exact(2, container="a"))],
        [box(exact(1, container="i"))],
        "a",
        [2],
    ),
    "an init container asks what is beyond them": (
        [box(exact(2, container="a"))],
        [box(exact(5, container="i"))],
        "ai",
        [2, 3],
    ),
    "only the largest of several init containers counts": (
        [],
        [box(exact(1, container="i")), box(exact(3, container="j")), box(exact(2, container="k"))],
        "j",
        [3],
    ),
    "a sidecar keeps its devices": (
        [box(exact(1, container="a"))],
        [box(exact(1, container="s"), sidecar=True)],
        "as",
        [1, 1],
    ),
    "an init container after a sidecar cannot take the sidecar's devices": (
        [box(exact(1, container="a"))],
        [box(exact(1, container="s"), sidecar=True), box(exact(2, container="i"))],
        "asi",
        [1, 1, 1],
    ),
    "resources of different names are not reused for each other": (
        [box(exact(1, container="a"))],
        [box(exact(1, MIG, container="i"))],
        "ai",
        [1, 1],
    ),
}


@pytest.mark.parametrize(("containers", "init", "want_names", "want_counts"), ASKS.values(), ids=ASKS)
def test_devices_by_name(
    containers: list[ContainerNeed], init: list[ContainerNeed], want_names: str, want_counts: list[int]
) -> None:
    got = effective_need(containers, init).requests
    assert "".join(request.container for request in got) == want_names
    assert [request.count for request in got] == want_counts


SHARES = {
    "all shares lie on one GPU": ([box(gpushare(2, "a")), box(gpushare(3, "b"))], [], [gpushare(5)]),
    "one container keeps its name": ([box(gpushare(2, "a")), box()], [], [gpushare(2, "a")]),
    "a larger init step wins": ([box(gpushare(2, "a"))], [box(gpushare(7, "i"))], [gpushare(7)]),
    "a smaller init step is covered": ([box(gpushare(7, "a"))], [box(gpushare(2, "i"))], [gpushare(7)]),
    "an init step stands on the sidecars before it": (
        [box(gpushare(1, "a"))],
        [box(gpushare(4, "s"), sidecar=True), box(gpushare(3, "i"))],
        [gpushare(7)],
    ),
}


@pytest.mark.parametrize(("containers", "init", "want"), SHARES.values(), ids=SHARES)
def test_shares_of_one_pod_are_one_ask(
    containers: list[ContainerNeed], init: list[ContainerNeed], want: list[DeviceRequest]
) -> None:
    assert list(effective_need(containers, init).requests) == want


NEEDS = {
    "each container has its own devices": (
        [box(need(6, container="a")), box(need(4, container="b"))],
        [],
        [(6, 1), (4, 1)],
    ),
    "an init container takes the device that grows least": (
        [box(need(6, container="a")), box(need(4, container="b"))],
        [box(need(5, container="i"))],
        [(6, 1), (4, 1)],
    ),
    "a device grows for a larger init container": (
        [box(need(6, container="a"))],
        [box(need(8, container="i"))],
        [(8, 1)],
    ),
    "several devices grow together, so that they stay on as many GPUs": (
        [box(need(1, 8, container="a"))],
        [box(need(40, container="i"))],
        [(40, 8)],
    ),
    "one device grows rather than several": (
        [box(need(6, 2, container="a")), box(need(5, container="b"))],
        [box(need(8, container="i"))],
        [(6, 2), (8, 1)],
    ),
    "several devices are those of one container": (
        [box(need(6, container="a")), box(need(5, 2, container="b"))],
        [box(need(7, 2, container="i"))],
        [(6, 1), (7, 2)],
    ),
    "as many as no container has are its own": (
        [box(need(6, container="a")), box(need(5, 2, container="b"))],
        [box(need(1, 3, container="i"))],
        [(6, 1), (5, 2), (1, 3)],
    ),
    "a running sidecar's device is not taken": (
        [],
        [box(need(4, container="s"), sidecar=True), box(need(2, container="i"))],
        [(4, 1), (2, 1)],
    ),
    "a later init container reuses an earlier one's device": (
        [],
        [box(need(2, container="i")), box(need(5, container="j"))],
        [(5, 1)],
    ),
}


@pytest.mark.parametrize(("containers", "init", "want"), NEEDS.values(), ids=NEEDS)
def test_needs_grow_where_init_containers_reuse_them(
    containers: list[ContainerNeed], init: list[ContainerNeed], want: list[tuple[int, int]]
) -> None:
    assert [(request.memory_mib, request.count) for request in effective_need(containers, init).requests] == want


REUSED = {
    "its own, though another is smaller": (need(4, container="i"), "bi", [], (1,)),
    "the smallest that is enough": (need(5, container="i"), "abc", [], (0,)),
    "one with as much compute": (need(4, compute_percent=30, container="i"), "abc", [], (2,)),
    "as many as it asks, of one container": (need(4, 2, container="i"), "cbaaa", [], (2, 3)),
    "none where no container has as many": (need(4, 2, container="i"), "cba", [], ()),
    "none of a sidecar that runs": (need(4, container="i"), "ab", ["b"], (0,)),
    "the largest where none is enough": (need(90, container="i"), "abc", [], (2,)),
    "none where all run": (need(4, container="i"), "ab", ["a", "b"], ()),
}
DEVICES = {
    "a": need(6, container="a"),
    "b": need(4, container="b"),
    "c": need(8, compute_percent=50, container="c"),
    "i": need(4, container="i"),
}


@pytest.mark.parametrize("case", REUSED)
def test_whose_devices_an_init_container_has(case: str) -> None:
    request, devices, running, want = REUSED[case]
    assert reused(request, [DEVICES[name] for name in devices], running) == want


@given(st.data())
def test_every_init_container_has_devices_that_are_enough_and_that_nobody_beside_it_has(data: st.DataObject) -> None:
    containers, init = data.draw(_containers("a", sidecars=False)), data.draw(_containers("i", sidecars=True))
    devices = [
        msgspec.structs.replace(request, count=1)
        for request in effective_need(containers, init).requests
        if request.form is Form.NEED
        for _ in range(request.count)
    ]
    running: set[str] = set()
    for each in init:
        for request in (request for request in each.requests if request.form is Form.NEED and not each.sidecar):
            found = [devices[index] for index in reused(request, devices, running)]
            assert len(found) == request.count
            assert len({device.container for device in found}) == 1, "only one container's are on as many GPUs"
            assert all(device.container not in running for device in found)
            assert all(device.memory_mib >= request.memory_mib for device in found)
        running |= {request.container for request in each.requests if each.sidecar}


def test_compute_grows_with_memory_equal() -> None:
    got = effective_need(
        [box(need(4, compute_percent=50, container="a")), box(need(4, compute_percent=20, container="b"))],
        [box(need(4, compute_percent=30, container="i"))],
    )
    assert [request.compute_percent for request in got.requests] == [50, 20]


def test_a_stronger_grade_covers_a_weaker_ask() -> None:
    grades = (Isolation.NONE, Isolation.DRIVER, Isolation.HARDWARE)
    assert [[grade.covers(requested) for requested in grades] for grade in grades] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


@st.composite
def _containers(draw: st.DrawFn, prefix: str, *, sidecars: bool) -> list[ContainerNeed]:
    made = []
    for index in range(draw(st.integers(0 if sidecars else 1, 4))):
        name = f"{prefix}{index}"
        request = draw(
            st.sampled_from([None, "exact", "share", "need"]),
        )
        amount = draw(st.integers(1, 6))
        requests = {
            None: (),
            "exact": (exact(amount, draw(st.sampled_from([GPU, MIG])), name),),
            "share": (gpushare(amount, name),),
            "need": (need(amount, draw(st.integers(1, 3)), draw(st.integers(0, 100)), name),),
        }[request]
        sidecar = sidecars and draw(st.booleans())
        made.append(box(*requests, cpu=draw(st.integers(0, 9)), memory=draw(st.integers(0, 9)), sidecar=sidecar))
    return made


def _kubernetes(containers: list[ContainerNeed], init: list[ContainerNeed], name: str) -> Fraction:
    """Follow AggregateContainerRequests of kubernetes/component-helpers, which keeps running sums."""
    total = sum((_amount(c, name) for c in containers), Fraction(0))
    sidecars = largest = Fraction(0)
    for container in init:
        amount = _amount(container, name)
        if container.sidecar:
            total += amount
            sidecars += amount
            amount = sidecars
        else:
            amount += sidecars
        largest = max(largest, amount)
    return max(total, largest)


def _amount(container: ContainerNeed, name: str) -> Fraction:
    if name in {"cpu", "memory"}:
        return Fraction(getattr(container, name))
    requests = (request for request in container.requests if request.resource == name)
    return Fraction(sum(request.memory_mib if request.form is Form.SHARE else request.count for request in requests))


@given(_containers("a", sidecars=False), _containers("i", sidecars=True))
def test_amounts_equal_kubernetes_formula(containers: list[ContainerNeed], init: list[ContainerNeed]) -> None:
    got = effective_need(containers, init)
    assert got.cpu == _kubernetes(containers, init, "cpu")
    assert got.memory == _kubernetes(containers, init, "memory")
    for resource in (GPU, MIG):
        assert sum(request.count for request in got.requests if request.resource == resource) == _kubernetes(
            containers, init, resource
        )
    shares = [request.memory_mib for request in got.requests if request.form is Form.SHARE]
    assert sum(shares) == _kubernetes(containers, init, "aliyun.com/gpu-mem")
    assert len(shares) <= 1


@given(_containers("a", sidecars=False), _containers("i", sidecars=True))
def test_every_step_finds_its_devices(containers: list[ContainerNeed], init: list[ContainerNeed]) -> None:
    """At each step the largest devices asked for fit the largest held, each its own: enough, by Hall's theorem."""
    held = sorted((request.memory_mib for request in _each(effective_need(containers, init).requests)), reverse=True)
    sidecars: list[ContainerNeed] = []
    steps = []
    for container in init:
        steps.append([*sidecars, container])
        if container.sidecar:
            sidecars.append(container)
    for step in [*steps, [*containers, *sidecars]]:
        desired = sorted((request.memory_mib for c in step for request in _each(c.requests)), reverse=True)
        assert len(desired) <= len(held)
        assert all(want <= have for want, have in zip(desired, held, strict=False))


@given(_containers("a", sidecars=False), _containers("i", sidecars=True))
def test_no_more_devices_than_the_busiest_step(containers: list[ContainerNeed], init: list[ContainerNeed]) -> None:
    """But for init containers that request several GPUs, which nobody's devices of before may be enough for."""
    several = any(request.count > 1 for each in init if not each.sidecar for request in _each(each.requests))
    got = effective_need(containers, init).requests
    busiest = _kubernetes(containers, init, "tessera.dev/gpu-memory")
    devices = sum(request.count for request in got if request.form is Form.NEED)
    assert devices >= busiest if several else devices == busiest


def _each(requests: tuple[DeviceRequest, ...]) -> list[DeviceRequest]:
    return [request for request in requests if request.form is Form.NEED for _ in range(request.count)]
