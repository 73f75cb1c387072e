"""What stands behind the sharing of a node: a share that needs MPS is offered and started where its daemon runs."""

import msgspec
import pytest

from builders.deviceplugins import gate
from builders.nodepods import node_pods
from builders.nodeviews import RecordedPods
from builders.shares import share
from harness.mpsnodes import Bench
from tessera.agent.sharing import MpsSettings
from tessera.agent.sharing.enforcer import Enforcer
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.nodesharing import NodeSharing
from tessera.errors import Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

REPLICAS = Sharing(modes=(Mode.MPS,), replicas=(("", 4),))
ONE = share(0, 1024, Mode.MPS)


async def applied(bench: Bench, settings: MpsSettings) -> tuple[Enforcer, Gpu]:
    """Return an enforcer after a round on a node with one GPU of MPS replicas, and that GPU as it may be offered."""
    enforcer = Enforcer(bench.driver, settings, bench.root / "state", logger())
    inventory = await bench.driver.inventory()
    first = inventory.gpus[0]
    gpu = Gpu(index=0, model=first.model, memory_mib=first.memory_mib, sharing=REPLICAS, uuid=first.uuid)
    pods, used = node_pods(), gate(RecordedPods()).record
    (left,) = await enforcer.apply([gpu], msgspec.structs.replace(inventory, gpus=(first,)), NodeSharing(), pods, used)
    return enforcer, left


async def test_a_daemon_that_runs_stands_behind_its_shares(bench: Bench) -> None:
    settings = MpsSettings(program=str(bench.program), root=bench.root / "mps", answer_s=20.0, start_s=30.0)
    enforcer, left = await applied(bench, settings)
    assert (enforcer.no_mps(), enforcer.problems) == ("", ())
    assert left.sharing == REPLICAS
    enforcer.check([ONE], await bench.driver.inventory())


async def test_without_the_program_no_such_share_is_offered_or_started(bench: Bench) -> None:
    settings = MpsSettings(program=str(bench.root / "none"), root=bench.root / "mps")
    enforcer, left = await applied(bench, settings)
    assert enforcer.no_mps()
    assert Mode.MPS not in left.sharing.modes
    with pytest.raises(Unavailable, match="no MPS daemon limits its memory"):
        enforcer.check([ONE], await bench.driver.inventory())
    enforcer.check([share(0, 1024, Mode.MEMORY_SHARE)], await bench.driver.inventory())
