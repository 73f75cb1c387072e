"""The declared sharing of this node's GPUs at one moment: by files, labels and the GPUNode."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from tessera.agent.declarations.configuration import Configuration, ConfigurationFiles, GivenPolicy
from tessera.agent.nodestate.gpunode import GpuNodeLink, GpuNodeRequest
from tessera.agent.watchednode import WatchedNode
from tessera.clients.gpu import GpuDriver
from tessera.clients.kube import labels_of
from tessera.core.cluster.gpunodestate import Impairment
from tessera.core.cluster.namedshares import shares_by_id
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import without_mps
from tessera.core.node.desired import fixed
from tessera.core.node.nodelabels import MIG_CONFIG
from tessera.core.node.nodesharing import NodeSharing, effective, notes

__all__ = ["Declarations", "Declared", "MpsSupport"]


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The declared sharing, and the GPUs that the driver showed at that time."""

    inventory: Inventory
    node_sharing: NodeSharing | None
    """None where the files are invalid and nothing was in force before: then nothing may be advertised."""
    gpus: tuple[Gpu, ...] = ()
    """With the declared sharing, before desired devices and withheld ones are applied."""
    request: GpuNodeRequest = GpuNodeRequest()
    layout_name: str = ""
    """The label `nvidia.com/mig.config`; empty for none."""
    generation: str = ""
    """The files in force, as `Configuration.generation`."""
    notes: tuple[str, ...] = ()
    """Declarations without effect, with the reason; one sentence each."""
    impaired: tuple[Impairment, ...] = ()
    """Those of them that last until a declaration is changed."""


class MpsSupport(Protocol):
    """Whether a node can run MPS."""

    def no_mps(self) -> str:
        """Return why not; empty where it can."""
        ...


class Declarations:
    """Reads the declarations.

    Args:
        driver: the node's GPU driver.
        files: the node's files.
        watched: the Node object.
        gpunode: the GPUNode's spec.
        mps: whether the node can run it.

    """

    def __init__(
        self,
        driver: GpuDriver,
        files: ConfigurationFiles,
        watched: WatchedNode,
        gpunode: GpuNodeLink,
        mps: MpsSupport,
    ) -> None:
        self._driver = driver
        self._files = files
        self._watched = watched
        self._gpunode = gpunode
        self._mps = mps

    async def observe(self) -> Declared:
        """Return the current declarations.

        Raises:
            TesseraError: the driver does not answer.

        """
        inventory = await self._driver.inventory()
        labels, request = labels_of(self._watched.node()), self._gpunode.request()
        policy = GivenPolicy(name=request.policy_name, text=request.policy) if request.policy else None
        found = self._files.read(labels, inventory.gpus, policy)
        impaired = tuple(_impairments(found, request))
        problems = tuple(each.message for each in impaired)
        node_sharing = found.node_sharing
        if node_sharing is None:
            return Declared(inventory=inventory, node_sharing=None, request=request, notes=problems, impaired=impaired)
        name = labels.get(MIG_CONFIG, "")
        gpus = effective(inventory, node_sharing)
        return Declared(
            inventory=inventory,
            node_sharing=node_sharing,
            gpus=self._possible(fixed(gpus) if name else gpus),
            request=request,
            layout_name=name,
            generation=found.generation,
            notes=(*problems, *notes(inventory, node_sharing), *inventory.remarks),
            impaired=impaired,
        )

    async def shares_by_id(self) -> Mapping[str, Share]:
        """Return the share of each device id, as declared now.

        Raises:
            TesseraError: the driver does not answer.

        """
        declared = await self.observe()
        return shares_by_id(declared.gpus, declared.inventory)

    def _possible(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Return the GPUs; managed ones without MPS where the node cannot run it."""
        if not self._mps.no_mps():
            return gpus
        return tuple(
            msgspec.structs.replace(gpu, sharing=without_mps(gpu.sharing)) if gpu.sharing.managed else gpu
            for gpu in gpus
        )


def _impairments(configuration: Configuration, request: GpuNodeRequest) -> Iterator[Impairment]:
    """Yield the declarations that are not in force."""
    for problem in (configuration.problem, request.problem):
        if problem:
            yield Impairment(kind="Refused", message=problem)
    for each in configuration.overridden:
        yield Impairment(kind="Overridden", subject=each.source, by=each.by, message=str(each))
