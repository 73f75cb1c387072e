"""Reports of a cluster's agents, through its API server."""

import asyncio
from functools import partial

import msgspec

from tessera.api.kubernetes.conditions import is_true
from tessera.api.kubernetes.podstates import is_terminating
from tessera.api.tessera.usage.usagejson import read_usage
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import PODS, Forbidden, Kube, Object, Selection, annotations_of, name_of
from tessera.clients.nodeusage.protocol import METRICS_PORT, MOST_BYTES, NodeReports
from tessera.clients.nodeusage.reading import AgentReads
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["ProxiedUsage"]

_AGENTS = Selection(
    namespace=NAMESPACE, labels=(("app.kubernetes.io/name", "tessera"), ("app.kubernetes.io/component", "agent"))
)
_SCHEME = "prometheus.io/scheme"
"""Annotation of a pod with metrics over TLS, as in common scrape configurations of Prometheus."""
_LOG = f"see kubectl describe pod and kubectl logs of it, in {NAMESPACE}"
_HINT = f"run kubectl -n tessera-system port-forward POD {METRICS_PORT}, then --agent 127.0.0.1:{METRICS_PORT}"


class ProxiedUsage:
    """`UsageSource` of all agents, found by the labels of their pods; one that is not ready does not answer.

    An agent is believed for the node that its pod is on, and for no other.

    Args:
        kube: the cluster's API. The caller lists `pods` and gets `pods/proxy` in Tessera's namespace.
        node: the one node whose agent is asked; None for all.

    """

    def __init__(self, kube: Kube, *, node: str | None = None) -> None:
        self._kube = kube
        self._node = node
        of_node = () if node is None else (("spec.nodeName", node),)
        self._agents = msgspec.structs.replace(_AGENTS, fields=of_node)
        self._reads, self._reading = AgentReads(), asyncio.Lock()

    async def read(self) -> NodeReports:
        """Return the report of each agent."""
        try:
            found = (await self._kube.list(PODS, self._agents)).objects
        except Forbidden as error:
            raise _lacking("agents", error) from error
        pods = [each for each in found if not is_terminating(each)]
        if not pods and self._node is not None:
            hint = f"kubectl get nodes lists the nodes, kubectl -n {NAMESPACE} get pods -o wide the agents"
            raise Unavailable(f"node {self._node}", found="no agent pod runs on it", hint=hint)
        if not pods:
            raise Unavailable("agents", found="no agent pod exists", hint=f"install the agents, or {_HINT}")
        return await self._reads.read({_called(each): partial(self._ask, each) for each in pods})

    async def _ask(self, pod: Object) -> UsageReport:
        namespace, name = name_of(pod)
        subject = _called(pod)
        on = pod.get("spec", {}).get("nodeName", "")
        if not is_true(pod, "Ready"):
            where = f" on node {on}" if on else ""
            raise Unavailable(subject, found=f"its pod{where} is not ready", hint=_LOG)
        try:
            tls = annotations_of(pod).get(_SCHEME) == "https"
            answer = await self._kube.ask_pod(
                name, namespace, port=METRICS_PORT, path="usage", most=MOST_BYTES, tls=tls
            )
            async with self._reading:  # in one thread, so that a server's other requests are answered meanwhile
                report = await asyncio.to_thread(read_usage, answer, subject)
        except Forbidden as error:
            raise _lacking(subject, error) from error
        except (InvalidInput, Unavailable) as error:
            raise Unavailable(subject, found=error.found, hint=_HINT) from error
        if report.node != on:
            found = f"it reports node {shown(report.node)}, but its pod is on node {on}"
            raise Unavailable(subject, found=found, hint=f"check who runs it; {_LOG}")
        return report

    async def close(self) -> None:
        """End all connections."""
        await self._reads.close()
        await self._kube.close()


def _called(pod: Object) -> str:
    namespace, name = name_of(pod)
    return f"agent {namespace}/{name}"


def _lacking(subject: str, error: Forbidden) -> Unavailable:
    role = f"the rights of Role tessera-usage-viewer in {NAMESPACE}"
    return Unavailable(subject, found=f"{error.found}, and {role} are needed", hint=_HINT)
