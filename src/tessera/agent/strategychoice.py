"""How a node's devices are handed to containers: the device list strategies."""

import msgspec

from tessera.agent.cdisupport import observe_cdi
from tessera.agent.settings import Paths
from tessera.api.tessera.node.nodereports import DEVICE_LIST
from tessera.clients.kube import Object, annotations_of
from tessera.core.node.liststrategies import list_strategies, read_strategies
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.log import Logger

__all__ = ["StrategyChoice"]


class StrategyChoice:
    """The device list strategies: as configured, else what the node supports.

    Args:
        paths: where the driver's and the runtime's files are.
        default: the agent's option, where nothing is configured.
        log: for changes.

    """

    def __init__(self, paths: Paths, default: tuple[ListStrategy, ...], log: Logger) -> None:
        self._paths = paths
        self._default = default
        self._log = log
        self.strategies: tuple[ListStrategy, ...] = ()
        """The last chosen strategies."""

    def choose(self, plugin: PluginOptions, node: Object) -> PluginOptions:
        """Return the options with strategies that the node supports; before a restart it may have recorded some."""
        paths = self._paths
        support = observe_cdi(
            node,
            runtime_config=paths.runtime_config,
            driver_specs=paths.driver_specs,
            driver_folder=paths.driver_folder,
        )
        former = self.strategies or read_strategies(annotations_of(node).get(DEVICE_LIST, ""))
        chosen = list_strategies(plugin.list_strategies or self._default, support, former)
        if chosen.strategies != self.strategies:
            self.strategies = chosen.strategies
            write = self._log.warning if chosen.fallback else self._log.info
            reason = f"{chosen.fallback}: {chosen.advice}" if chosen.fallback else ""
            write("device_list_strategy", strategies=list(chosen.strategies), reason=reason)
        return msgspec.structs.replace(plugin, list_strategies=chosen.strategies)
