"""Where the cells of a strip lie: inside it, never on each other, one for each pod."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from builders.pictures import overlap, within
from tessera.cli.drawing.geometry import Cell, row
from tessera.cli.drawing.views import DrawnDevice, DrawnGpu, DrawnPod
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import PodKey


@st.composite
def gpus(draw: st.DrawFn) -> DrawnGpu:
    units = draw(st.sampled_from([0, 4, 8, 12]))
    memory = draw(st.integers(1, 200_000))
    devices = []
    start = 0
    while start < max(1, units):
        size = draw(st.integers(1, units - start)) if units else 0
        if draw(st.booleans()):
            clients = draw(st.integers(0, 20))
            amounts = draw(st.lists(st.integers(0, memory), max_size=24))
            holders = tuple(
                DrawnPod(pod=PodKey(f"p-{n}"), workload=n, memory_mib=mib, compute_percent=0, running=n % 2 == 0)
                for n, mib in enumerate(amounts)
            )
            mode = Mode.MIG if units else Mode.MPS
            devices.append(
                DrawnDevice(
                    label="1g",
                    start=start,
                    size=size,
                    mode=mode,
                    memory_mib=memory,
                    clients=clients,
                    exists=True,
                    pods=holders,
                )
            )
        start += max(1, size)
    return DrawnGpu(
        index=0,
        model="X",
        memory_mib=memory,
        memory_slices=units,
        allocated_mib=0,
        mig=bool(units),
        devices=tuple(devices),
    )


def cell_box(cell: Cell) -> tuple[float, float, float, float]:
    return cell.x, cell.y, cell.x + cell.width, cell.y + cell.height


@given(gpu=gpus(), flat=st.booleans())
def test_cells_never_overlap_and_show_everyone(gpu: DrawnGpu, *, flat: bool) -> None:
    wide = 68.0 if flat else 888.0
    got = row(gpu, wide, flat=flat)
    boxes = [cell_box(cell) for cell in got.cells]
    assert all(within(one, (0, 0, wide, got.height)) for one in boxes)
    assert all(cell.width > 0 and (cell.height > 0 or flat) for cell in got.cells)
    if not flat:
        assert not [pair for pair in itertools.combinations(boxes, 2) if overlap(*pair)]
    holders = [cell.holder for cell in got.cells if cell.holder]
    assert sorted(holder.pod for holder in holders) == sorted(
        holder.pod for device in gpu.devices for holder in device.pods
    )
