"""Writes to the pods of this node, each by its UID: another pod may have the name by then."""

from collections.abc import Mapping

from tessera.agent.pods.podsview import PodsView
from tessera.clients.kube import PODS, Kube, Object, name_of, uid_of

__all__ = ["OwnPods"]


class OwnPods:
    """The pods of this node, and writes to them.

    Args:
        kube: the Kubernetes API.
        view: the pods of this node.

    """

    def __init__(self, kube: Kube, view: PodsView) -> None:
        self._kube = kube
        self._view = view

    def pods(self) -> tuple[Object, ...]:
        """Return the pods of this node."""
        return self._view.pods()

    async def annotate(self, pod: Object, annotations: Mapping[str, str]) -> Object:
        """Set annotations of this very pod and return it as stored.

        Raises:
            TesseraError: another pod has its name, or the API server does not answer.

        """
        namespace, name = name_of(pod)
        body = {"metadata": {"uid": uid_of(pod), "annotations": dict(annotations)}}
        return await self._kube.patch(PODS, name, body, namespace=namespace)

    async def evict(self, name: str, namespace: str) -> None:
        """Evict the pod of this name on this node, if it exists.

        Raises:
            TesseraError: another pod has its name, a PodDisruptionBudget forbids it, or the API server does not answer.

        """
        pod = next((each for each in self._view.pods() if name_of(each) == (namespace, name)), None)
        if pod is not None:
            await self._kube.evict(name, namespace, uid=uid_of(pod))
