"""Who uses a node's GPUs, and what of them is offered."""

import asyncio

from builders.gpufacts import gpu_facts
from harness.partitions import (
    FORMER,
    SEVEN,
    TWO,
    machine_of,
)
from harness.virtualtime import run
from tessera.agent.partition import Partitioner


def test_what_is_not_known_to_be_unused_is_not_destroyed() -> None:
    """The kubelet falls silent after the GPU was drained."""
    machine = machine_of(gpu_facts(layout=SEVEN))

    async def silence() -> tuple[str, ...]:
        apply = asyncio.create_task(Partitioner(machine.gpus).apply((TWO,), 200))
        await asyncio.sleep(1.5)
        machine.hangs.add("held")
        return await apply

    (failed,) = run(silence())
    assert failed == "GPU 0: draining did not end in time" + FORMER
    assert machine.destroyed == []
