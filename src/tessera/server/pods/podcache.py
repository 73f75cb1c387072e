"""The observed pods of the cluster: which version counts, which pods are gone, and what each is allocated.

The ledger counts their allocations. Versions come by a watch and by reads of single pods, in any order:
a version older than the known one, or than the pod's deletion, is ignored.
"""

from collections.abc import Callable, Iterable

import msgspec

from tessera.api.tessera.pods.clusterpods import LivePod, read_live_pod
from tessera.clients.kube import Listing, Object, annotations_of, uid_of, version_of
from tessera.core.cluster.protocols.claims import Fate
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.packing.ledger import Ledger, LedgerEntry, LedgerKey
from tessera.server.knownkeys import KnownKeys
from tessera.server.pods.pendingexchanges import ExchangedShares
from tessera.server.pods.retention import Retention
from tessera.server.recent import Recent

__all__ = ["PodCache"]


class PodCache:
    """The pods as one server observes them, and their holders in the ledger.

    Args:
        ledger: counts each pod's allocation.
        keys: whose signatures count on which node.
        clock_s: the monotonic clock.
        skip: called with kind, name and reason of an unreadable object.

    """

    def __init__(
        self, ledger: Ledger, keys: KnownKeys, clock_s: Callable[[], float], skip: Callable[[str, str, str], None]
    ) -> None:
        self.share_unit_mib = 1024
        """MiB in one `aliyun.com/gpu-mem`, see `core.cluster.shareunit`."""
        self._ledger = ledger
        self._keys = keys
        self._skip = skip
        self._retention = Retention()
        self._exchanges = ExchangedShares(ledger, clock_s)
        self._objects: dict[str, Object] = {}
        self._live: dict[str, LivePod] = {}
        self._uids: dict[str, str] = {}
        self._assumed: dict[str, LedgerEntry] = {}
        self._gone = Recent[str]()
        self._listed = 0

    # Questions

    def find(self, key: str) -> tuple[Object, LivePod] | None:
        """Return the last observed pod of this namespace and name."""
        uid = self._uids.get(key)
        return None if uid is None else (self._objects[uid], self._live[uid])

    def live_pod(self, uid: LedgerKey) -> LivePod | None:
        """Return the pod of this UID; None if it was not observed, as for claims and nominations in the ledger."""
        return self._live.get(uid) if isinstance(uid, str) else None

    def using_gpus(self) -> Iterable[tuple[Object, LivePod]]:
        """Yield the pods that request GPUs."""
        return ((self._objects[uid], live) for uid, live in self._live.items() if live.gpus)

    def fate(self, uid: str) -> Fate:
        """Return what became of a pod, as far as observed."""
        live = self._live.get(uid)
        if uid in self._gone or (live is not None and live.finished):
            return Fate.GONE
        return Fate.BOUND if uid in self._assumed or (live is not None and live.node) else Fate.OPEN

    def read(self, pod: Object) -> LivePod:
        """Return the parsed Pod; an object parsed before is not parsed twice."""
        uid = uid_of(pod)
        known = self._objects.get(uid)
        if known is not None and version_of(known) == version_of(pod) and version_of(pod):
            return self._live[uid]
        return self._parsed(pod)

    # Observing

    def take(self, pod: Object) -> None:
        """Take the current Pod object unless a later version is known, or note that it is gone."""
        uid = uid_of(pod)
        if uid in self._gone:
            return  # a read overtaken by the watch: no later event would report the pod's end
        known = self._objects.get(uid)
        if known is None and 0 < int(version_of(pod) or 0) <= self._listed:
            return  # a read overtaken by a list of all pods, without this one
        if known is not None and int(version_of(known)) >= int(version_of(pod)):
            self._take_former(uid, pod)
        elif known is not None and _same_request(known, pod):
            self._keep(uid, pod, self._live[uid])
        else:
            self._keep(uid, pod, self._live_pod(pod))

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        live = self._live.pop(uid, None)
        self._objects.pop(uid, None)
        self._retention.forget(uid)
        if live is not None:
            self._exchanges.ended(live)
        if live is not None and self._uids.get(live.key) == uid:
            del self._uids[live.key]
        self._assumed.pop(uid, None)
        self._ledger.drop_pod(uid)
        self.mark_gone(uid)

    def mark_gone(self, uid: str) -> None:
        """Record that the pod with this UID is gone."""
        self._gone.add(uid)

    def unlisted(self, pods: Listing, node: str = "") -> list[str]:
        """Return the UIDs of known pods that are missing from a list, of all pods or of one node.

        No event reports the end of a pod that was read singly; one observed after the list is not among them.
        """
        present, moment = {uid_of(pod) for pod in pods.objects}, int(pods.resource_version)
        there = {holder.id for holder in self._ledger.pods_on(node)} if node else self._objects.keys()
        known = ((uid, self._objects[uid]) for uid in self._objects.keys() & there - present)
        return [
            uid for uid, each in known if int(version_of(each)) <= moment and (not node or self._live[uid].node == node)
        ]

    def listed(self, pods: Listing) -> None:
        """Note that all pods were listed: older versions of unknown pods are of deleted ones."""
        self._listed = int(pods.resource_version)

    def assume(self, live: LivePod, node: str, shares: tuple[Share, ...]) -> None:
        """Count a pod that this server bound as bound, until the watch shows it."""
        now = self._live.get(live.uid)
        if live.uid not in self._gone and not (now and (now.node or now.finished)):
            holder = LedgerEntry(live.uid, live.key, NodeName(node), live.need, shares, live.priority)
            self._assumed[live.uid] = holder
            self._ledger.put_pod(holder)

    def drop_expired(self) -> None:
        """Drop shares kept for exchanges without any change for too long."""
        self._exchanges.drop_expired()

    # Reparsing

    def read_again(self, node: str) -> None:
        """Parse the pods of a node again: other signatures count there."""
        for uid in self._objects.keys() & {holder.id for holder in self._ledger.pods_on(node)}:
            self._keep(uid, self._objects[uid], self._live_pod(self._objects[uid]))

    def take_unit(self, unit_mib: int) -> None:
        """Parse all pods again if the unit of memory shares changed."""
        if unit_mib != self.share_unit_mib:
            self.share_unit_mib = unit_mib
            for uid, each in list(self._objects.items()):
                self._keep(uid, each, self._live_pod(each))

    def _parsed(self, pod: Object) -> LivePod:
        node = (pod.get("spec") or {}).get("nodeName") or ""
        return read_live_pod(pod, share_unit_mib=self.share_unit_mib, keys=self._keys.on(node))

    def _live_pod(self, pod: Object) -> LivePod:
        live = self._parsed(pod)
        if live.doubted:
            self._keys.doubt(live.node, live.doubted)
        return self._retention.retained(pod, live, self._keys.on(live.node), self._keys.ring.revoked)

    def _take_former(self, uid: str, pod: Object) -> None:
        """Take a version of a pod overtaken by a read: it may be the only one with its assignment."""
        live = self._live[uid]
        if live.node and live.claiming and not live.shares and self._live_pod(pod).shares:
            self._keep(uid, self._objects[uid], self._live_pod(self._objects[uid]))

    def _keep(self, uid: str, pod: Object, live: LivePod) -> None:
        before = self._live.get(uid)
        self._objects[uid], self._live[uid], self._uids[live.key] = pod, live, uid
        if live.wrong and live.gpus:
            self._skip("Pod", live.key, live.wrong)
        if live.unread:
            self._skip("assignment of Pod", live.key, live.unread)
        if live.finished:
            self._assumed.pop(uid, None)
            self._ledger.drop_pod(uid)
            self._exchanges.ended(before or live)
        elif live.node:
            self._assumed.pop(uid, None)
            holder = LedgerEntry(uid, live.key, NodeName(live.node), live.need, live.shares, live.priority)
            self._ledger.put_pod(msgspec.structs.replace(holder, doubted=True) if live.doubted else holder)
            if before is not None and before.node == live.node:
                self._exchanges.moved(before, live)


def _same_request(before: Object, after: Object) -> bool:
    """Return whether two versions of a pod parse to the same; a status that does not end it makes no difference."""
    return (
        before.get("spec") == after.get("spec")
        and annotations_of(before) == annotations_of(after)
        and (before.get("status") or {}).get("phase") == (after.get("status") or {}).get("phase")
    )
