"""The node agent: observe the node, plan by `core`, apply; level-triggered, with nothing that it could not find again.

Three loops: one follows the layout label, one keeps what is offered to the kubelet as it should be, one listens to the
driver. Each looks when something changed, and every few seconds in any case, and goes on after any error.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.configuration import APPLIED, ConfigurationFiles
from tessera.agent.deviceplugin import Outside as PluginsOutside
from tessera.agent.deviceplugin import Paths as PluginPaths
from tessera.agent.deviceplugin import Plugins
from tessera.agent.enforcer import Enforcer
from tessera.agent.health import HealthWatch
from tessera.agent.nodefiles import read_file
from tessera.agent.nodepods import NodePods
from tessera.agent.noderecord import NodeRecord
from tessera.agent.partition import (
    MIG_CONFIG,
    MIG_CONFIG_STATE,
    Checkpoint,
    Follower,
    Outside,
    Partitioner,
    Policy,
    RebootRecord,
    reboot,
)
from tessera.agent.settings import Settings
from tessera.api import documents, migparted
from tessera.api.gpulabels import Labelling, gpu_labels, owns, stamped
from tessera.api.nodereports import ENFORCEMENT, Report, enforcement_text
from tessera.bell import Bell
from tessera.clients.gpu import GpuDriver
from tessera.clients.kube import NODES, PODS, Kube, Object, Selection, Store, labels_of
from tessera.clients.kubelet import PodResources
from tessera.core.advertise import NodeOffer, OfferOptions, offer
from tessera.core.health import Change, Phase
from tessera.core.holdings import given
from tessera.core.inventory import Inventory
from tessera.core.layouts import Group, PolicyAttempt, Recorded, Wish, attempted, policy_targets, worth_trying
from tessera.core.mig import Layout, Placement
from tessera.core.mps import enforcements
from tessera.core.nodesharing import PluginOptions, Strategy, effective, notes, withheld
from tessera.core.sharing import Mode
from tessera.core.snapshot import Gpu, Share
from tessera.errors import InvalidInput, TesseraError, Unavailable
from tessera.log import logger

__all__ = ["Agent"]

_ENFORCED = frozenset({Mode.MPS, Mode.MIG_MPS, Mode.MEMORY_SHARE})
_EVENTS = {
    "configuration": "ConfigurationImpaired",
    "enforcement": "EnforcementImpaired",
    "plugins": "ResourceNotAdvertised",
    "policy": "LayoutFailed",
}
"""Reasons of the node's events about what is impaired."""
_INSTANCE_S = 25.0
"""For a MIG instance that a pod waits for; the kubelet waits 30 s for `PreStartContainer`."""


class Agent:
    """The agent of one node; `run` ends when it is cancelled, and leaves all that pods use as it is.

    Args:
        settings: names, folders, and how often it looks.
        driver: the node's GPU driver.
        kube: the Kubernetes API.

    """

    def __init__(self, settings: Settings, driver: GpuDriver, kube: Kube) -> None:
        self._settings = settings
        self._driver = driver
        self._kube = kube
        self._log = logger(node=settings.node)
        self._layout_bell, self._offer_bell = Bell(), Bell()
        self._node_store = Store(
            kube, NODES, _of_node("metadata.name", settings.node), wake=self._ring, on_trouble=self._trouble
        )
        self._pod_store = Store(
            kube, PODS, _of_node("spec.nodeName", settings.node), wake=self._ring, on_trouble=self._trouble
        )
        self._record = NodeRecord(kube, settings.node, self._log)
        self._kubelet = PodResources(settings.paths.pod_resources)
        self._files = ConfigurationFiles(settings.sources)
        self._enforcer = Enforcer(driver, settings.mps, settings.paths.state, self._log)
        self._health = HealthWatch(driver, settings.health, on_change=self._judged)
        self._changes: list[Change] = []
        self._kept: dict[str, Layout] = {}
        """Instances of a GPU that alone are offered while its layout changes."""
        self._attempt: PolicyAttempt | None = None
        self._begun = False
        """Whether the layouts of before a reboot are back; nothing is offered before."""
        self._offering = asyncio.Lock()
        self._notes: dict[str, tuple[str, ...]] = {}
        self._untold: list[Report] = []
        paths = settings.paths
        outside = PluginsOutside(
            pods=self._bound,
            record=self._kubelet.list,
            correct=self._correct,
            instance=self._instance,
            enforce=self._enforce,
        )
        self._plugins = Plugins(
            PluginPaths(
                plugins=paths.plugins,
                cdi=paths.cdi,
                minors=paths.mig_minors,
                memory=paths.state / "shares.json",
                mps_root=settings.mps.root,
            ),
            outside,
            self._log,
        )
        self._pods = NodePods(self._bound, self._kubelet, self._plugins.dues)

    async def run(self) -> None:
        """Run until cancelled."""
        self._log.info("agent_started")
        try:
            async with self._kubelet, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._node_store.run())
                tasks.create_task(self._pod_store.run())
                await self._node_store.synced()
                await self._pod_store.synced()
                follower = await self._persist("start", self._begin)
                self._begun = True
                tasks.create_task(self._plugins.run())
                tasks.create_task(self._forever("layout", self._layout_bell, lambda: self._follow(follower)))
                tasks.create_task(self._forever("offer", self._offer_bell, self._offer))
                tasks.create_task(self._listen())
        finally:
            self._log.info("agent_stopped")

    async def _persist(self, what: str, act: Callable[[], Awaitable[Follower]]) -> Follower:
        """Return what an action returns, trying again until it succeeds: nothing may be offered before."""
        while True:
            try:
                return await act()
            except (TesseraError, TimeoutError) as error:
                self._trouble(error, what)
            await asyncio.sleep(self._settings.interval_s)

    async def _forever(self, what: str, bell: Bell, act: Callable[[], Awaitable[None]]) -> None:
        """Act again and again, whatever comes; ends when this agent is told to, and for no other reason."""
        while True:
            try:
                await act()
            except (TesseraError, TimeoutError, OSError) as error:
                self._trouble(error, what)
            except asyncio.CancelledError as error:
                # gRPC ends calls so whose connection is closed; without this the loop would end without a word.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._trouble(error, what)
            await bell.wait(self._settings.interval_s)

    def _ring(self) -> None:
        self._layout_bell.ring()
        self._offer_bell.ring()

    def _trouble(self, error: BaseException, what: str = "follow") -> None:
        self._log.warning("look_again", what=what, reason=str(error) or type(error).__name__)

    # Layouts

    async def _begin(self) -> Follower:
        """Bring back the layouts of before a reboot, and return who follows the label."""
        labels = labels_of(await self._record.read())
        checkpoint = Checkpoint(self._settings.paths.checkpoint)
        outside = Outside(driver=self._driver, held=self._held, offer=self._keep)
        self._partitioner = Partitioner(outside, self._recorded(checkpoint), checkpoint.write)
        loop = asyncio.get_running_loop()
        for failed in await self._partitioner.restore(loop.time() + outside.timing.restore_s):
            await self._record.report(Report(reason="LayoutNotRestored", message=failed, warning=True))
        command = self._settings.reboot
        policy = Policy(
            configurations=self._configurations,
            report=self._report,
            limits=msgspec.structs.replace(self._settings.limits, may_reboot=bool(command)),
            evict=self._kube.evict if self._settings.evict else None,
            reboot=functools.partial(reboot, command),
            record=RebootRecord(self._settings.paths.rebooted),
        )
        follower = Follower(self._partitioner, policy)
        follower.resume(labels.get(MIG_CONFIG, ""), labels.get(MIG_CONFIG_STATE, ""))
        return follower

    def _recorded(self, checkpoint: Checkpoint) -> tuple[Recorded, ...]:
        try:
            return checkpoint.read()
        except InvalidInput as error:
            self._log.warning("checkpoint_ignored", reason=str(error))
            return ()

    async def _follow(self, follower: Follower) -> None:
        name = labels_of(self._node()).get(MIG_CONFIG, "")
        await follower.follow(name)
        if not name:
            await self._follow_policy()
        self._offer_bell.ring()

    async def _follow_policy(self) -> None:
        """Cut what the node policy wants, on a node whose label asks for nothing."""
        inventory = await self._driver.inventory()
        said = self._files.read(labels_of(self._node()), inventory.gpus).node_sharing
        targets = policy_targets(inventory, said) if said else ()
        now_s, limits = asyncio.get_running_loop().time(), self._settings.limits
        if worth_trying(targets, inventory, self._attempt, now_s=now_s):
            failures = await self._partitioner.apply(targets, now_s + limits.pending_s)
            self._note("policy", failures)
            self._attempt = attempted(targets, inventory, failures, limits, began_s=now_s)

    def _configurations(self) -> Mapping[str, tuple[Group, ...]]:
        path = self._settings.mig_config
        if path is None:
            return {}
        try:
            content = read_file(path)
        except OSError as error:
            raise InvalidInput(str(path), found=error.strerror or str(error), wanted="a mig-parted file") from error
        return migparted.read(documents.one(str(path), content))

    async def _report(self, wish: Wish) -> None:
        """Tell how it stands with the label: another label, a condition, an event."""
        condition = wish.condition
        if wish.state is None or condition is None:
            await self._record.set_labels({}, owned=lambda key: key == MIG_CONFIG_STATE)
            await self._record.remove_condition()
            return
        report = Report(reason=condition.reason, message=condition.message, warning=wish.state.value == "failed")
        await self._record.set_condition(condition.status, report)
        await self._record.set_labels({MIG_CONFIG_STATE: wish.state.value}, owned=lambda key: key == MIG_CONFIG_STATE)
        await self._record.report(report)

    async def _keep(self, gpu: str, layout: Layout | None) -> None:
        """Offer these instances of a GPU alone, or all again; return when the kubelet knows."""
        if layout is None:
            self._kept.pop(gpu, None)
        else:
            self._kept[gpu] = layout
        if self._begun and not await self._offered():
            raise Unavailable("kubelet", found="no sign that it has the new list of devices", wanted="one within 5 s")

    async def _held(self) -> Iterable[tuple[str, Sequence[str]]]:
        held = await self._pods.held(await self._driver.inventory())
        return [(each.pod, each.devices) for each in held]

    # Offers

    async def _offer(self) -> None:
        try:
            await self._offered()
        finally:
            while self._untold:
                await self._record.report(self._untold.pop(0))

    async def _offered(self) -> bool:
        """Look at everything once, make what is offered as it should be, and return whether the kubelet knows it."""
        async with self._offering:
            inventory = await self._driver.inventory()
            self._health.look(inventory)
            configuration = self._files.read(labels_of(self._node()), inventory.gpus)
            said = configuration.node_sharing
            if said is None:
                self._note("configuration", (configuration.problem,))
                return await self._plugins.offer(NodeOffer(resources=()), inventory, PluginOptions())
            if said.strategy is None:
                said = msgspec.structs.replace(said, strategy=self._settings.strategy)
            problem = (configuration.problem,) if configuration.problem else ()
            self._note("configuration", (*problem, *notes(inventory, said), *inventory.notes))
            self._plugins.count_in(said.unit_mib)
            shared = effective(inventory, said)
            gpus = await self._enforcer.apply(withheld(shared, self._kept), inventory, said, self._pods)
            self._note("enforcement", self._enforcer.problems)
            options = OfferOptions(
                unit_mib=said.unit_mib,
                given=given(self._plugins.dues(), inventory),
                unhealthy=self._health.unhealthy,
            )
            offered = offer(gpus, inventory, options)
            self._note("offer", offered.withheld)
            told = await self._plugins.offer(offered, inventory, said.plugin)
            self._note("plugins", self._plugins.problems)
            await self._tell_health(inventory)
            if self._settings.labels:
                await self._label(inventory, shared, said.strategy or self._settings.strategy)
            levels = enforcement_text(enforcements(gpus, inventory))
            await self._record.annotate({APPLIED: configuration.generation or None, ENFORCEMENT: levels})
            return told

    async def _instance(self, gpu: str, placement: Placement) -> Inventory:
        """Make a MIG instance that an assignment names, and return what the driver shows then."""
        loop = asyncio.get_running_loop()
        await self._partitioner.add(gpu, placement, loop.time() + _INSTANCE_S)
        return await self._driver.inventory()

    async def _enforce(self, shares: tuple[Share, ...]) -> None:
        """Let daemons and limits of shares be in force; whole devices and time-slices need none."""
        if any(share.mode in _ENFORCED for share in shares):
            await self._offer()
            self._enforcer.check(shares, await self._driver.inventory())

    async def _correct(self, namespace: str, pod: str, annotations: Mapping[str, str]) -> Object:
        return await self._kube.patch(PODS, pod, {"metadata": {"annotations": dict(annotations)}}, namespace=namespace)

    # Health and labels

    async def _listen(self) -> None:
        """Follow the driver's events; devices that are not well are offered no more."""
        while True:
            try:
                await self._health.run()
            except TesseraError as error:
                self._trouble(error, "events")
            await asyncio.sleep(self._settings.interval_s)

    def _judged(self, changes: tuple[Change, ...]) -> None:
        self._changes += changes
        self._ring()

    async def _tell_health(self, inventory: Inventory) -> None:
        """Report devices that fell ill or got well."""
        indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}
        while self._changes:
            change = self._changes.pop(0)
            gpu, placement = (change.key, None) if isinstance(change.key, str) else change.key
            where = f", {placement.profile} at {placement.start}" if placement else ""
            well = change.after is Phase.HEALTHY
            message = f"GPU {indices.get(gpu, '?')} ({gpu}){where}: {change.after.value}, {change.reason}"
            reason = "DeviceHealthy" if well else "DeviceUnhealthy"
            await self._record.report(Report(reason=reason, message=message, warning=not well))

    async def _label(self, inventory: Inventory, gpus: tuple[Gpu, ...], strategy: Strategy) -> None:
        """Describe the GPUs by labels."""
        machine = await asyncio.to_thread(_first_line, self._settings.paths.machine)
        labels = gpu_labels(inventory, gpus, Labelling(strategy=strategy, machine=machine))
        labels = stamped(labels, labels_of(self._node()), now_s=int(time.time()))
        await self._record.set_labels(labels, owned=owns)

    # What is seen

    def _bound(self) -> tuple[Object, ...]:
        """Return the pods that are bound to this node."""
        return tuple(self._pod_store.objects.values())

    def _node(self) -> Object:
        return self._node_store.objects.get(("", self._settings.node), {})

    def _note(self, about: str, sentences: Iterable[str]) -> None:
        """Log what is impaired, and have the node's events say it, once each time it changes."""
        now = tuple(sentences)
        if self._notes.get(about, ()) == now:
            return
        self._notes[about] = now
        self._log.warning("impaired" if now else "unimpaired", what=about, reason=list(now))
        if now and about in _EVENTS:
            self._untold.append(Report(reason=_EVENTS[about], message="; ".join(now), warning=True))


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip().partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def _of_node(field: str, node: str) -> Selection:
    return Selection(fields=((field, node),))
