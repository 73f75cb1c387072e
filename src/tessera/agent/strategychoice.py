"""How a node's devices are handed to containers: as configured, else as the node can."""

import msgspec

from tessera.agent.cdisupport import observe_cdi
from tessera.agent.settings import Paths
from tessera.api.tessera.nodereports import DEVICE_LIST
from tessera.clients.kube import Object, annotations_of
from tessera.core.node.liststrategies import list_strategies, read_strategies
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.log import Logger

__all__ = ["StrategyChoice"]


class StrategyChoice:
    """How a node's devices are handed over: as configured, else by what the node can follow.

    Args:
        paths: where the driver's and the runtime's files are.
        default: what the agent was started with, for where nothing is configured.
        log: where a change is logged.

    """

    def __init__(self, paths: Paths, default: tuple[ListStrategy, ...], log: Logger) -> None:
        self._paths = paths
        self._default = default
        self._log = log
        self.strategies: tuple[ListStrategy, ...] = ()
        """Those chosen last."""

    def choose(self, plugin: PluginOptions, node: Object) -> PluginOptions:
        """Return the options with strategies that the node can follow; those of before a restart it has noted."""
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
