"""Instructions of a repartition on a driver that fails, lies or does not end."""

import contextlib
from collections.abc import Callable

import pytest

from builders.gpufacts import gpu_facts
from harness.machines import Machine
from harness.partitions import (
    FAULT,
    FORMER,
    SEVEN,
    TWO,
    UNRESTORED,
    Between,
    apply,
    driver_of,
    machine_of,
)
from harness.virtualtime import run
from tessera.clients.gpu import MemoryDriver
from tessera.core.gpu.inventory import Instance
from tessera.core.gpu.mig import Placement
from tessera.errors import Unavailable


def test_what_does_not_end_in_time_is_given_up_before_it_begins() -> None:
    machine = machine_of(gpu_facts(layout=SEVEN))
    assert apply(machine, TWO, by_s=0) == (("GPU 0: not done in time",), {"GPU-0": SEVEN})


class Forgetful(Machine):
    """A driver that says an instance was made and makes none."""

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        made = await super().create_instance(gpu, placement)
        await self.driver.destroy_instance(gpu, placement)
        return made


class Half(Machine):
    """A driver that leaves every instance by half and says that it is made."""

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        made = await super().create_instance(gpu, placement)
        driver_of(self).fail("destroy_instance", FAULT, half_done=True)
        with contextlib.suppress(Unavailable):
            await self.driver.destroy_instance(gpu, placement)
        return made


def test_a_driver_that_never_gets_there_is_not_driven_for_ever() -> None:
    machine = Half(MemoryDriver((gpu_facts(layout=()),)))
    assert apply(machine, TWO)[0] == ("GPU 0: the driver accepts every step and reports another layout",)


def start_process(machine: Between) -> None:
    if len(machine.destroyed) == 1:
        driver_of(machine).start_process("GPU-0", 77, SEVEN[1])


@pytest.mark.parametrize(
    ("event", "want"),
    [
        pytest.param(
            start_process, f"destroying 1g.5gb at 1 failed: it has come into use{FORMER}", id="it came into use"
        ),
        pytest.param(
            lambda machine: machine.refuses.add("held"),
            "destroying 1g.5gb at 1 failed: whether it is in use is unknown; the previous layout could not "
            "be restored; until it is, only devices in use are advertised",
            id="the kubelet falls silent",
        ),
    ],
)
def test_just_before_an_instance_goes_it_is_looked_at_again(event: Callable[[Between], None], want: str) -> None:
    machine = Between(MemoryDriver((gpu_facts(layout=SEVEN),)), event)
    failures, layouts = apply(machine, TWO)
    assert failures == (f"GPU 0: {want}",)
    assert len(machine.destroyed) == 1
    assert set(SEVEN[1:]) <= set(layouts["GPU-0"] or ())


class UsedByHalf(Machine):
    """A node on which a process appears, nobody knows on which instance, when a step fails."""

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        try:
            await super().destroy_instance(gpu, placement)
        except Unavailable:
            driver_of(self).start_process(gpu, 77)
            raise


def test_what_is_left_by_half_stays_while_a_process_may_use_it() -> None:
    machine = UsedByHalf(MemoryDriver((gpu_facts(layout=SEVEN),)))
    driver_of(machine).fail("destroy_instance", FAULT, half_done=True)
    failures, layouts = apply(machine, TWO)
    assert failures == (f"GPU 0: destroying 1g.5gb at 0 failed: a fault{UNRESTORED}",)
    assert layouts == {"GPU-0": SEVEN}
    assert run(machine.driver.inventory()).gpus[0].incomplete == SEVEN[:1]


def test_a_driver_that_says_one_thing_and_shows_another_is_not_believed() -> None:
    machine = Forgetful(MemoryDriver((gpu_facts(layout=()),)))
    failures, layouts = apply(machine, TWO)
    assert failures == (f"GPU 0: the driver reports a layout other than the one created{FORMER}",)
    assert layouts == {"GPU-0": ()}
