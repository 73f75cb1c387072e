"""The server places pods where the simulator does, share for share: what is simulated is what a cluster gets."""

import math
import random

import pytest

from builders.kubeobjects import gpu
from harness.replaying import Machine, differences, make_machines, pod, simulated
from harness.servers import servers
from tessera.clients.kube import MemoryKube, Object
from tessera.core.gpu.sharing import Mode, Sharing

pytestmark = pytest.mark.anyio

MEMORY, COMPUTE, COUNT = "tessera.dev/gpu-memory", "tessera.dev/gpu-compute", "tessera.dev/gpu-count"
SHAPES = (
    ({MEMORY: 4}, "hardware"),
    ({MEMORY: 9}, "hardware"),
    ({MEMORY: 18, COMPUTE: 40}, "hardware"),
    ({MEMORY: 12}, "driver"),
    ({MEMORY: 5, COMPUTE: 30}, "none"),
    ({MEMORY: 30}, "none"),
    ({MEMORY: 8, COUNT: 2}, "none"),
    ({MEMORY: 300}, "none"),
    ({"aliyun.com/gpu-mem": 3}, "none"),
    ({"aliyun.com/gpu-mem": 14}, "none"),
    ({"cpu": 2}, "none"),
)
SHARED = Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))


def limits_of(each: Object) -> dict[str, str]:
    found: dict[str, str] = each["spec"]["containers"][0]["resources"]["limits"]
    return found


@pytest.mark.parametrize("filter_verb", ["filter", "choose"])
@pytest.mark.parametrize("seed", range(3))
async def test_the_server_places_every_pod_where_the_simulator_does(seed: int, filter_verb: str) -> None:
    """Eight nodes of five models, with MIG, amounts and whole GPUs; pods come and go."""
    rng = random.Random(seed)
    machines = [
        Machine(
            name=f"n{rng.randrange(1000):03}-{index}",
            gpus=tuple(gpu(number, kind) for number in range(rng.randint(1, 4))),
            cpu_milli=rng.choice((16_000, 96_000)),
        )
        for index, kind in enumerate(("A100-40GB", "A100-80GB", "H100-80GB", "T4", "A10", "A100-40GB", "A30"))
    ]
    machines.append(Machine(name="m-shared", gpus=(gpu(0, "A10", SHARED), gpu(1, "T4", SHARED))))
    pods = []
    for number in range(120):
        limits, grade = rng.choice(SHAPES)
        cpu_milli = 0 if "cpu" in limits else rng.choice((0, 1000, 4000))
        pods.append(pod(f"p{number:03}", limits, cpu_milli=cpu_milli, isolation=grade))
    stays = [math.inf if "cpu" in limits_of(each) else rng.choice((math.inf, 20.5, 60.5)) for each in pods]
    log = simulated(machines, pods, stays)
    kube = MemoryKube()
    await make_machines(kube, machines)
    async with servers(kube) as (server,):
        times, different = await differences(kube, server, machines, pods, log, filter_verb=filter_verb)
    assert not different, different
    assert len(times) == len(pods)
    assert sum(spot is not None for spot in log.spots) > 40
