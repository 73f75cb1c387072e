"""What is declared for the GPUs of this node at one moment: by files, labels and the GPUNode."""

from collections.abc import Callable, Iterator

import msgspec

from tessera.agent.declarations.configuration import Configuration, ConfigurationFiles, GivenPolicy
from tessera.agent.nodestate.gpunode import GpuNodeRequest
from tessera.clients.gpu import GpuDriver
from tessera.clients.kube import Object, labels_of
from tessera.core.cluster.gpunodestate import Impairment
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import without_mps
from tessera.core.node.desired import fixed
from tessera.core.node.nodelabels import MIG_CONFIG
from tessera.core.node.nodesharing import NodeSharing, effective, notes

__all__ = ["Declarations", "Declared"]


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What is declared, and what the driver showed then."""

    inventory: Inventory
    said: NodeSharing | None
    """None where the files are refused and nothing was in force before: then nothing may be offered."""
    gpus: tuple[Gpu, ...] = ()
    """With the sharing in force, before anything is desired or withheld of it."""
    asked: GpuNodeRequest = GpuNodeRequest()
    layout_name: str = ""
    """The label `nvidia.com/mig.config`; empty for none."""
    generation: str = ""
    """The files in force, as `Configuration.generation`."""
    notes: tuple[str, ...] = ()
    """What of all this has no effect, and why; one sentence each."""
    impaired: tuple[Impairment, ...] = ()
    """What of it lasts until somebody changes what is declared."""


class Declarations:
    """Reads what is declared.

    Args:
        driver: the node's GPU driver.
        files: the node's files.
        node: returns the Node object as last seen.
        asked: returns what the GPUNode asks.
        no_mps: returns why the node has no MPS; empty where it has.

    """

    def __init__(
        self,
        driver: GpuDriver,
        files: ConfigurationFiles,
        *,
        node: Callable[[], Object],
        asked: Callable[[], GpuNodeRequest],
        no_mps: Callable[[], str],
    ) -> None:
        self._driver = driver
        self._files = files
        self._node = node
        self._asked = asked
        self._no_mps = no_mps

    async def observe(self) -> Declared:
        """Return what is declared now.

        Raises:
            TesseraError: the driver does not answer.

        """
        inventory = await self._driver.inventory()
        labels, asked = labels_of(self._node()), self._asked()
        policy = GivenPolicy(name=asked.policy_name, text=asked.policy) if asked.policy else None
        found = self._files.read(labels, inventory.gpus, policy)
        impaired = tuple(_impairments(found, asked))
        problems = tuple(each.message for each in impaired)
        said = found.node_sharing
        if said is None:
            return Declared(inventory=inventory, said=None, asked=asked, notes=problems, impaired=impaired)
        name = labels.get(MIG_CONFIG, "")
        gpus = effective(inventory, said)
        return Declared(
            inventory=inventory,
            said=said,
            gpus=self._possible(fixed(gpus) if name else gpus),
            asked=asked,
            layout_name=name,
            generation=found.generation,
            notes=(*problems, *notes(inventory, said), *inventory.remarks),
            impaired=impaired,
        )

    def _possible(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Return the GPUs; managed ones without MPS where the node has none."""
        if not self._no_mps():
            return gpus
        return tuple(
            msgspec.structs.replace(gpu, sharing=without_mps(gpu.sharing)) if gpu.sharing.managed else gpu
            for gpu in gpus
        )


def _impairments(found: Configuration, asked: GpuNodeRequest) -> Iterator[Impairment]:
    """Yield what is not in force of what is declared."""
    for problem in (found.problem, asked.problem):
        if problem:
            yield Impairment(kind="Refused", message=problem)
    for each in found.overridden:
        yield Impairment(kind="Overridden", subject=each.source, by=each.by, message=str(each))
