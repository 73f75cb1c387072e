"""The pods of a node as an agent observes them, set by a test."""

from collections.abc import Iterable
from pathlib import Path

from tessera.agent.pods.podsview import by_uid
from tessera.clients.kube import Object, uid_of
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode
from tessera.core.deviceplugin.containerresponse import ContainerResponse


def of_the_host(proc: Path) -> Path:
    """Make a process table that is the machine's own, as an agent with `hostPID` has it."""
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to("pid:[4026531836]")
    return proc


class RecordedPods:
    """What `PodsView` observes, kept in this process."""

    checkpoint_is_readable = True
    kubelet_started_ns: int | None = None
    kubelet_resources: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.recorded: list[KubeletAllocation] = []
        self.processes: set[str] = set()
        self.owners: dict[int, str] = {}
        self.blind = False

    def pods(self) -> Iterable[Object]:
        return self.objects.values()

    def by_uid(self) -> dict[str, Object]:
        return by_uid(self.pods())

    def find(self, uid: str) -> Object | None:
        return next((pod for pod in self.objects.values() if uid_of(pod) == uid), None)

    async def refresh(self) -> None:
        return None

    async def allocated(self) -> tuple[KubeletAllocation, ...]:
        return tuple(self.recorded)

    async def devices_of_all_containers(self) -> tuple[KubeletAllocation, ...]:
        return ()

    async def devices_of_lasting_containers(self) -> tuple[KubeletAllocation, ...]:
        return await self.devices_of_all_containers()

    def has_lost(self, uid: str, container: str, resource: str) -> bool:
        return (uid, container, resource) not in self.responses()

    def node(self) -> RegisteredNode:
        return RegisteredNode()

    def responses(self) -> dict[tuple[str, str, str], ContainerResponse]:
        return {(each.uid, each.container, each.resource): ContainerResponse() for each in self.recorded}

    async def allocatable(self) -> dict[str, frozenset[str]]:
        return {}

    def running(self, uids: Iterable[str]) -> frozenset[str]:
        return frozenset(uids) & self.processes

    def running_containers(self, containers: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        return frozenset(each for each in containers if each[0] in self.processes)

    def pods_of(self, pids: Iterable[int]) -> dict[int, str]:
        return {pid: self.owners[pid] for pid in pids if pid in self.owners}

    def record(self, name: str, resource: str, *ids: str) -> None:
        """Let the kubelet record devices of a pod that the API server has."""
        self.objects[name] = {"metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"}}
        recorded = KubeletAllocation(
            uid=f"uid-{name}", container="main", resource=resource, device_ids=tuple(sorted(ids))
        )
        self.recorded.append(recorded)
