"""The ModelCache controller: decides which node caches which model. Observe, plan by `core.storage`, apply.

It writes the desired models to each node's NodeModels, and the status of each ModelCache. It keeps no state.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from tessera.api.kubernetes.containerlimits import limits_of
from tessera.api.tessera.v1alpha1.modelcaches import (
    ModelCacheStatus,
    cache_status,
    node_spec,
    read_model_cache,
    read_node_models,
)
from tessera.api.tessera.v1alpha1.objects import refused_status
from tessera.clients.kube import MODEL_CACHES, NODE_MODELS, PODS, Kube, Object, Selection, Store
from tessera.controller.reconciler import Reconciler
from tessera.core.storage.models.cachesummary import summarize_cache
from tessera.core.storage.models.nodemodels import DesiredModel, models_of_nodes
from tessera.core.workload.resources import MODEL_RESOURCE

__all__ = ["ModelCaches"]

_UNBOUND = Selection(fields=(("spec.nodeName", ""),))


class ModelCaches(Reconciler):
    """Reconciles the ModelCaches of all nodes; `run` ends when it is canceled.

    Args:
        kube: the Kubernetes API.
        nodes: the Node objects, watched by the caller.
        now: the wall clock.
        least_s: shortest pause between two passes, however much changes.

    """

    def __init__(
        self,
        kube: Kube,
        nodes: Store,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        least_s: float = 1.0,
    ) -> None:
        kinds = {MODEL_CACHES: Selection(), NODE_MODELS: Selection(), PODS: _UNBOUND}
        super().__init__(kube, nodes, kinds, "model_caches", now=now, least_s=least_s)

    async def reconcile(self) -> None:
        """Reconcile all ModelCaches once.

        Raises:
            TesseraError: a write failed; earlier writes stay.

        """
        # 1. Read the nodes with an agent, the models, and what pending pods request.
        now = self._now()
        nodes = self.read_nodes(NODE_MODELS, lambda each, ready: read_node_models(each, ready=ready))
        names = {each.name for each in nodes}
        known, refused = self.read_selecting(
            MODEL_CACHES, read_model_cache, lambda each: each.spec.node_selector, names
        )
        demand = _demand(self.objects(PODS).values())
        # 2. Plan, and write the desired models of each node.
        invalid = {found["metadata"]["name"] for found, _ in refused}
        desired = models_of_nodes([core for _, core in known], nodes, demand, invalid)
        for node in nodes:
            planned = desired.get(node.name)
            if planned is not None and (node.unknown or planned != node.desired):
                await self._write_node(node.name, planned)
        # 3. Write the status of each ModelCache.
        for each, core in known:
            status = cache_status(each, summarize_cache(core, nodes, demand), now)
            await self.write_status(MODEL_CACHES, each.metadata.name, each.status, status)
        for found, problem in refused:
            await self.write_refused(
                MODEL_CACHES, found, ModelCacheStatus, partial(refused_status, problem=problem, now=now)
            )

    async def _write_node(self, name: str, desired: tuple[DesiredModel, ...]) -> None:
        await self.write(NODE_MODELS, name, spec=node_spec(desired))
        self._log.info("node_models_written", node=name, models=[each.name for each in desired])


def _demand(pods: Iterable[Object]) -> Counter[str]:
    """Return how many pods request each model."""
    found = Counter[str]()
    for pod in pods:
        requested = (resource for _, resource, _ in limits_of(pod) if resource.startswith(MODEL_RESOURCE))
        found.update({each.removeprefix(MODEL_RESOURCE) for each in requested})
    return found
