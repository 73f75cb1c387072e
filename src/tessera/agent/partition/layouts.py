"""The MIG layouts of this node: requested by its label, fixed by its policy, and on managed GPUs as pods need them."""

import asyncio
import functools
from collections.abc import Iterable, Mapping

import msgspec

from tessera.agent.declarations.declared import Declarations, Declared
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.partition import (
    Checkpoint,
    Follower,
    NodeGpus,
    NodeLocks,
    Partitioner,
    RebootRecord,
    reboot,
)
from tessera.agent.partition.label import MigConfigLabel
from tessera.agent.pods.evictions import Evict
from tessera.agent.pods.nodepods import NodePods
from tessera.agent.settings import AgentSettings
from tessera.api.tessera.node.nodereports import Report
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.node.desired import targets
from tessera.core.node.layouts import (
    LayoutTarget,
    PolicyAttempt,
    Recorded,
    attempted,
    policy_targets,
    worth_trying,
)
from tessera.core.node.nodelabels import MIG_CONFIG, MIG_CONFIG_STATE
from tessera.core.node.nodesharing import NodeSharing
from tessera.core.node.repartition import Stage
from tessera.errors import Conflict, InvalidInput
from tessera.log import logger

__all__ = ["Layouts"]

_INSTANCE_S = 25.0
"""Deadline for a device that a container waits for; the kubelet waits 30 s for `PreStartContainer`."""


class Layouts:
    """Changes layouts; call `follow` with each change, and every few seconds.

    Args:
        settings: of the agent.
        gpus: the node's GPUs.
        record: the Node object.
        declarations: of the GPUs' sharing.
        pods: with their assignments.
        evict: evicts a pod.

    """

    def __init__(
        self,
        settings: AgentSettings,
        gpus: NodeGpus,
        record: NodeRecord,
        declarations: Declarations,
        pods: NodePods,
        evict: Evict,
    ) -> None:
        self._settings = settings
        self._gpus = gpus
        self._record = record
        self._declarations = declarations
        self._pods = pods
        self._log = logger()
        self._attempts: dict[str, PolicyAttempt] = {}
        self._label = MigConfigLabel(settings.mig_config, record)
        self.unmet: tuple[str, ...] = ()
        """What the node policy sets and no GPU has yet, and what it waits for."""
        checkpoint = Checkpoint(settings.paths.checkpoint)
        locks = NodeLocks(settings.paths.locks)
        self._partitioner = Partitioner(gpus, self._recorded(checkpoint), checkpoint.write, locks)
        self._follower = self._following(evict)

    @property
    def outcomes(self) -> Mapping[Stage, int]:
        """How many repartitions ended how, since the agent started."""
        return self._partitioner.outcomes

    async def begin(self, labels: Mapping[str, str]) -> None:
        """Restore the layouts of before a reboot, and resume the former agent's work for the label."""
        self._label.check()
        loop = asyncio.get_running_loop()
        for failed in await self._partitioner.restore(loop.time() + self._gpus.timing.restore_s):
            await self._record.report(Report(reason="LayoutNotRestored", message=failed, warning=True))
        self._follower.resume(labels.get(MIG_CONFIG, ""), labels.get(MIG_CONFIG_STATE, ""))

    async def follow(self, name: str) -> None:
        """Do what can be done now for the configuration of this name; without a name, for policy and pods."""
        self._label.check()
        await self._follower.follow(name)
        if name:
            self.unmet = ()
            return
        declared = await self._declarations.observe()
        if declared.node_sharing is not None:
            await self._follow_policy(declared.inventory, declared.node_sharing)
            await self._follow_pods(declared)

    async def create_instance(self, gpu: str, placement: Placement) -> None:
        """Create the MIG instance of an assignment, if it is missing.

        Raises:
            TesseraError: it cannot be created in time, and why.

        """
        by_s = asyncio.get_running_loop().time() + _INSTANCE_S
        await self._partitioner.create_instance(gpu, placement, by_s)

    async def disable_mig(self, gpu: str, inventory: Inventory) -> bool:
        """Switch MIG off on a GPU that is assigned as a whole or by an amount; return whether anything was done.

        Raises:
            TesseraError: that cannot be done in time, and why.

        """
        partitioned = any(facts.uuid == gpu and facts.layout is not None for facts in inventory.gpus)
        if not partitioned and not self._partitioner.busy(gpu):
            return False
        declared = await self._declarations.observe()
        left = any(each.uuid == gpu and each.sharing.managed for each in declared.gpus)
        if partitioned and not left:
            raise Conflict(
                f"GPU {gpu}",
                found="MIG stays on, as its layout is fixed, and the pod requests an amount of its memory",
                hint="request one of its MIG instances",
            )
        if left:
            by_s = asyncio.get_running_loop().time() + _INSTANCE_S
            await self._partitioner.disable_mig(gpu, by_s)
        return left

    async def _follow_policy(self, inventory: Inventory, node_sharing: NodeSharing) -> None:
        """Partition GPUs as the node policy fixes them; until they are, `unmet` says which are not."""
        goals = policy_targets(inventory, node_sharing)
        if not goals:
            self.unmet = ()
            self._record.note("policy", ())
            return
        self.unmet = self.unmet or _unmet(goals)
        failures = await self._try("policy", goals, inventory)
        if failures is not None:
            self.unmet = failures or _unmet(policy_targets((await self._gpus.observe())[0], node_sharing))

    # Layouts for pods

    async def _follow_pods(self, declared: Declared) -> None:
        """Partition managed GPUs for assignments and desired devices."""
        desired, assigned = declared.request.desired or (), self._pods.assigned_devices(declared.inventory)
        if not targets(declared.gpus, declared.inventory, desired, (), assigned):
            return
        inventory, users = await self._gpus.observe()
        await self._try("desired", targets(declared.gpus, inventory, desired, users, assigned), inventory)

    async def _try(self, what: str, goals: tuple[LayoutTarget, ...], inventory: Inventory) -> tuple[str, ...] | None:
        """Bring GPUs to their targets, and return what failed; None where it is not time to try again.

        What failed is tried again after a while, or when something changed.
        """
        now_s, limits = asyncio.get_running_loop().time(), self._settings.limits
        if not worth_trying(goals, inventory, self._attempts.get(what), now_s=now_s):
            return None
        failures = await self._partitioner.apply(goals, now_s + limits.pending_s)
        self._record.note(what, failures)
        self._attempts[what] = attempted(goals, inventory, failures, limits, began_s=now_s)
        return failures

    # The label's layout

    def _following(self, evict: Evict) -> Follower:
        command, limits = self._settings.reboot, self._settings.limits
        return Follower(
            self._partitioner,
            self._label,
            msgspec.structs.replace(limits, may_reboot=bool(command)),
            evict=evict if self._settings.evict else None,
            reboot=functools.partial(reboot, command),
            record=RebootRecord(self._settings.paths.rebooted),
        )

    def _recorded(self, checkpoint: Checkpoint) -> tuple[Recorded, ...]:
        try:
            return checkpoint.read()
        except InvalidInput as error:
            self._log.warning("checkpoint_ignored", reason=str(error))
            return ()


def _unmet(goals: Iterable[LayoutTarget]) -> tuple[str, ...]:
    return tuple(
        f"GPU {each.index}: it does not have the layout of the policy yet; pods that use it have to end first"
        for each in goals
    )
