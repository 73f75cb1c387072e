"""ModelCaches: which node shall have which model, and how far all are; observe, plan by `core.storage`, apply.

It writes what a node shall have into the node's NodeModels, and the status of each ModelCache. It remembers nothing.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from tessera.api.kubernetes.containerlimits import asks_of
from tessera.api.tessera.modelcaches import (
    Status,
    cache_status,
    node_spec,
    read_model_cache,
    read_node_models,
)
from tessera.api.tessera.objects import refused_status
from tessera.clients.kube import MODEL_CACHES, NODE_MODELS, PODS, Kube, Object, Selection, Store
from tessera.controller.following import Following
from tessera.core.storage.models.cache import DesiredModel, models_of_nodes, summary
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.log import logger
from tessera.measures import Measures

__all__ = ["ModelCaches"]

_UNBOUND = Selection(fields=(("spec.nodeName", ""),))


class ModelCaches:
    """Decides for all nodes; `run` ends when it is cancelled.

    Args:
        kube: the Kubernetes API.
        nodes: the Node objects, which somebody else follows.
        now: the wall clock.
        least_s: shortest pause between two looks, however much changes.

    """

    def __init__(
        self,
        kube: Kube,
        nodes: Store,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        least_s: float = 1.0,
    ) -> None:
        self._now = now
        self._least_s = least_s
        self._log = logger()
        kinds = {MODEL_CACHES: Selection(), NODE_MODELS: Selection(), PODS: _UNBOUND}
        self._following = Following(kube, nodes, kinds, "model_caches")

    async def run(self, measures: Measures) -> None:
        """Run until cancelled; without the kinds wait for them."""
        await self._following.run(self.reconcile, self._least_s, measures)

    async def reconcile(self) -> None:
        """Look at everything once and do what is to be done.

        Raises:
            TesseraError: something could not be written; what was written before stays.

        """
        # 1. Read the nodes that have an agent, the models, and what pending pods ask for.
        follow, now = self._following, self._now()
        nodes = follow.read_nodes(NODE_MODELS, lambda each, ready: read_node_models(each, ready=ready))
        names = {each.name for each in nodes}
        known, refused = follow.read_selecting(
            MODEL_CACHES, read_model_cache, lambda each: each.spec.node_selector, names
        )
        demand = _demand(follow.objects(PODS).values())
        # 2. Decide, and write what nodes shall have.
        unread = {found["metadata"]["name"] for found, _ in refused}
        desired = models_of_nodes([core for _, core in known], nodes, demand, unread)
        for node in nodes:
            if desired[node.name] != node.desired:
                await self._write_node(node.name, desired[node.name])
        # 3. Write how far the models are.
        for each, core in known:
            status = cache_status(each, summary(core, nodes, demand), now)
            await follow.write_status(MODEL_CACHES, each.metadata.name, each.status, status)
        for found, problem in refused:
            await follow.write_refused(MODEL_CACHES, found, Status, partial(refused_status, problem=problem, now=now))

    async def _write_node(self, name: str, desired: tuple[DesiredModel, ...]) -> None:
        await self._following.write(NODE_MODELS, name, spec=node_spec(desired))
        self._log.info("node_models_written", node=name, models=[each.name for each in desired])


def _demand(pods: Iterable[Object]) -> Counter[str]:
    """Return how many pods ask for each model."""
    found = Counter[str]()
    for pod in pods:
        requested = (resource for _, resource, _ in asks_of(pod) if resource.startswith(MODEL_RESOURCE))
        found.update({each.removeprefix(MODEL_RESOURCE) for each in requested})
    return found
