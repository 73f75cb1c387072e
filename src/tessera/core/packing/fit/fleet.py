"""The fleet as numpy arrays: the free resources of every node and GPU, changed in place by taking and giving shares."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tessera.core.cluster.compatibility import faults, free_clients, with_reserved
from tessera.core.cluster.gputypes import MODE_BIT, GpuType, GpuTypes, Ints
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Running, Share, Snapshot
from tessera.core.gpu.instancecounts import occupied
from tessera.core.gpu.mig import Placement, placement_at
from tessera.core.gpu.sharing import AMOUNT_MODES, Mode, Option
from tessera.core.packing.fit.deviceclasses import DeviceClass, class_of
from tessera.core.workload.need import Need, PodKey
from tessera.errors import InvalidInput

__all__ = ["CLOSED", "CPU", "MEMORY", "OPEN", "PODS", "UNHEALTHY", "Fleet", "impossible_share"]

CPU: Final = 0
MEMORY: Final = 1
PODS: Final = 2
OPEN, UNHEALTHY, CLOSED = range(3)
"""The last is a GPU that is closed to new pods for another reason: its records conflict, or others decide about it."""
_AMOUNT_BITS: Final = tuple(MODE_BIT[mode] for mode in AMOUNT_MODES)
_OF_GPUS: Final = ("kind", "serves", "memory_left", "compute_left", "remaining", "used", "clients", "closed")
"""Arrays of one number a GPU."""

VACANT: Final = Node(name=NodeName(""), cpu_milli=0, memory_mib=0, max_pods=0)
"""Stands for no node."""
_REWIRED: Final = 1 << 13
"""Columns whose GPUs changed, after which everything derived from them is recomputed."""
_LEAST: Final = 64
"""Columns that are added at least when one more is desired."""


class Fleet:
    """Working state of all nodes: arrays with one column a node and one row a GPU, padded to the most GPUs of a node.

    `take` allocates a pod its shares and `give` undoes it exactly. GPUs are never overcommitted; cpu and
    memory of running pods may exceed a node (static pods, shrunk nodes), which leaves it negative and so closed.

    `put` and `remove` change nodes one by one. A column that a node leaves is taken by the next that comes.

    Attributes:
        nodes: by column, `VACANT` where none is; at first in the order given.
        index: the column of each node.
        gpu_index: by column, the index of each GPU in its node.
        size: what nodes have: cpu (milli), memory (MiB), pods, in rows CPU, MEMORY, PODS; `(3, nodes) int64`.
        room: what nodes have left of it.
        unreported: columns of nodes whose agents have not reported their GPUs yet.
        types: distinct GPU configurations; 0 is the absent GPU, and a type whose last GPU is gone stays.
        shape: how often types came or went or arrays were reallocated; anything compiled for another shape is invalid.
        rewired: columns whose GPUs changed, in order; see `fit.spread`.
        kind: index into `types`; `(gpus, nodes) int64`, as are all that follow.
        serves: modes in which something new can be created, bits of `MODE_BIT`. An empty GPU serves all its
            modes, any other only the mode it is committed to.
        compute_left: percent of the GPU that amounts may still take.
        memory_left: MiB that amounts may still take.
        amounts: `compute_left` where amounts are served, by `AMOUNT_MODES`, -1 elsewhere; `(2, gpus, nodes)`.
        used: MIG state, see `instancecounts`.
        remaining: percent of the GPU that is idle in any mode, rounded down: for amounts the scarcer of compute and
            memory, for MIG the free memory slices, for fixed devices the free clients.
        clients: number of shares in use.
        closed: OPEN, or why new pods are allocated nothing of a GPU: UNHEALTHY or CLOSED.
        classes: distinct existing devices.
        offers: free clients of existing devices, `(classes, gpus, nodes)`.

    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        self.index: dict[str, int] = {node.name: i for i, node in enumerate(self.nodes)}
        gpus = [tuple(sorted(node.gpus, key=lambda gpu: gpu.index)) for node in self.nodes]
        self._column = [{gpu.index: column for column, gpu in enumerate(row)} for row in gpus]
        self.gpu_index = [tuple(gpu.index for gpu in row) for row in gpus]
        sizes = [_size(node) for node in self.nodes]
        self.size: Ints = np.array(sizes, dtype=np.int64).reshape(-1, 3).T.copy()
        self.room: Ints = self.size.copy()
        self.unreported = {i for i, node in enumerate(self.nodes) if not node.reported}
        self.shape = 0
        self.rewired: list[int] = []
        self._vacant: list[int] = []
        self._types = GpuTypes()
        self.types = self._types.found
        self._device_clients: dict[tuple[int, int], list[int]] = {}
        self._larger: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}  # by device: see `_count_larger`
        self._created: dict[tuple[int, int], tuple[Placement, ...]] = {}
        self.classes: dict[DeviceClass, int] = {}
        self.kind: Ints = self._types.all_of(gpus, max(map(len, gpus), default=0))
        self._counts = Counter(self.kind.ravel().tolist())
        self.serves, self.memory_left, self.compute_left = (np.zeros_like(self.kind) for _ in range(3))
        self.remaining, self.used, self.clients, self.closed = (np.zeros_like(self.kind) for _ in range(4))
        self.amounts: Ints = np.zeros((len(AMOUNT_MODES), *self.kind.shape), dtype=np.int64)
        self._number_classes()
        self.offers: Ints = np.zeros((len(self.classes), *self.kind.shape), dtype=np.int64)
        self._reset(slice(None))

    @property
    def widest(self) -> int:
        """The most GPUs that any node has."""
        return int(np.count_nonzero(np.logical_or.reduce(self.kind > 0, axis=1)))

    @property
    def census(self) -> Ints:
        """How many GPUs of each type there are, `(types,)`, the absent one 0."""
        return np.array([0, *(self._counts[kind] for kind in range(1, len(self.types)))], dtype=np.int64)

    @property
    def present(self) -> list[int]:
        """The types that there are GPUs of now, in order."""
        return [kind for kind in range(1, len(self.types)) if self._counts[kind]]

    def put(self, node: Node) -> bool:
        """Put a node in place of the one of its name, or as a new one; return whether its GPUs are free.

        They are if any of them changed. Otherwise everything stays, except that `room` has grown as the node did.
        """
        gpus = tuple(sorted(node.gpus, key=lambda gpu: gpu.index))
        kinds = self._kinds(gpus)
        column = self.index.get(node.name)
        if column is None:
            column = self.index[node.name] = self._vacant.pop() if self._vacant else self._widened()
            self.room[:, column] = self.size[:, column] = 0
        if len(gpus) > len(self.kind):
            self._resize(len(gpus), len(self.nodes))
        size: Ints = np.array(_size(node), dtype=np.int64)
        self.room[:, column] += size - self.size[:, column]
        self.size[:, column] = size
        self.nodes[column] = node
        (self.unreported.discard if node.reported else self.unreported.add)(column)
        kinds += [0] * (len(self.kind) - len(kinds))
        index = tuple(gpu.index for gpu in gpus)
        if self.gpu_index[column] == index and self.kind[:, column].tolist() == kinds:
            return not index
        self._rewire(column, index, kinds)
        return True

    def remove(self, name: str) -> int:
        """Remove a node with all its shares, and return its column."""
        column = self.index.pop(name)
        self.nodes[column] = VACANT
        self.unreported.discard(column)
        self.room[:, column] = self.size[:, column] = 0
        self._rewire(column, (), [0] * len(self.kind))
        self._vacant.append(column)
        return column

    def _kinds(self, gpus: Sequence[Gpu]) -> list[int]:
        """Return the types of GPUs, new ones added."""
        known = len(self.types)
        kinds = [self._types.of(gpu) for gpu in gpus]
        if len(self.types) > known:
            self._number_classes()
            self._resize(*self.kind.shape)
        return kinds

    def _number_classes(self) -> None:
        """Number the classes of existing devices that are new."""
        for gpu_type in self.types:
            for device in gpu_type.devices:
                self.classes.setdefault(class_of(device), len(self.classes))

    def _widened(self) -> int:
        """Return a new column; others are allocated along with it, for nodes to come."""
        column = len(self.nodes)
        more = max(column, _LEAST)
        self._resize(len(self.kind), column + more)
        self.nodes += [VACANT] * more
        self._column += [{} for _ in range(more)]
        self.gpu_index += [()] * more
        self._vacant += range(column + more - 1, column, -1)
        return column

    def _resize(self, rows: int, columns: int) -> None:
        """Enlarge the arrays to this size, for all classes of devices."""
        self.shape += 1
        self.rewired = []
        for name in (*_OF_GPUS, "room", "size"):
            array = getattr(self, name)
            setattr(self, name, _padded(array, (len(array) if name in {"room", "size"} else rows, columns), 0))
        self.amounts = _padded(self.amounts, (len(AMOUNT_MODES), rows, columns), -1)
        self.offers = _padded(self.offers, (len(self.classes), rows, columns), 0)

    def _rewire(self, column: int, index: tuple[int, ...], kinds: Sequence[int]) -> None:
        """Give a column other GPUs, all free."""
        changed = self._count_types(self.kind[:, column].tolist(), kinds)
        self.gpu_index[column] = index
        self._column[column] = {gpu: row for row, gpu in enumerate(index)}
        self.kind[:, column] = kinds
        self.rewired.append(column)
        if len(self.rewired) > _REWIRED or changed:
            self.rewired = []
            self.shape += 1
        for row in range(len(kinds)):
            self._device_clients.pop((row, column), None)
            self._larger.pop((row, column), None)
            self._created.pop((row, column), None)
        self._reset(slice(column, column + 1))

    def _count_types(self, former: Sequence[int], kinds: Sequence[int]) -> bool:
        """Count GPUs that take others' place; return whether one is the first of its type, or was the last."""
        concerned = {*former, *kinds} - {0}
        present = [kind for kind in concerned if self._counts[kind]]
        self._counts.subtract(former)
        self._counts.update(kinds)
        return present != [kind for kind in concerned if self._counts[kind]]

    def _reset(self, nodes: slice) -> None:
        """Make the GPUs of nodes free."""
        kind = self.kind[:, nodes]
        self.serves[:, nodes] = np.array([t.serves for t in self.types], dtype=np.int64)[kind]
        self.memory_left[:, nodes] = np.array([t.memory_mib for t in self.types], dtype=np.int64)[kind]
        self.compute_left[:, nodes] = self.remaining[:, nodes] = np.where(kind > 0, 100, 0)
        self.used[:, nodes] = self.clients[:, nodes] = 0
        for each, bit in enumerate(_AMOUNT_BITS):
            self.amounts[each, :, nodes] = np.where(self.serves[:, nodes] & bit, self.compute_left[:, nodes], -1)
        self.offers[:, :, nodes] = 0
        has_devices = np.array([bool(t.devices) for t in self.types])[kind]
        for row, column in np.argwhere(has_devices).tolist():
            node = column + (nodes.start or 0)
            self._device_clients[row, node] = [0] * len(self.types[self.kind[row, node]].devices)
            self._offer(row, node)
        closed = np.array([t.healthy is not None for t in self.types])[kind]
        self.closed[:, nodes] = np.where(closed, CLOSED, OPEN)
        for row, column in np.argwhere(closed).tolist():
            node = column + (nodes.start or 0)
            if self.gpu_index[node][row] in self.nodes[node].unhealthy:
                self.closed[row, node] = UNHEALTHY

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Fleet":
        """Return the fleet with the shares of running pods taken, and what is reserved beside them.

        Raises:
            InvalidInput: two nodes of one name, or a running pod has what its node does not have.

        """
        fleet = cls(snapshot.nodes)
        if len(fleet.index) < len(fleet.nodes):
            names = [node.name for node in fleet.nodes]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"node {twice}", found="two nodes have this name", hint="name each node once")
        in_use: dict[tuple[int, int], dict[PodKey, list[Share]]] = {}
        for running in snapshot.running:
            fleet._resume(running, in_use)
        for (column, index), holders in in_use.items():
            fleet._check(column, index, holders)
        for column, node in enumerate(snapshot.nodes):
            for gpu in node.gpus:
                if gpu.reserved:
                    own = [share for shares in in_use.get((column, gpu.index), {}).values() for share in shares]
                    for share in with_reserved(gpu, own)[len(own) :]:
                        fleet.hold(column, share)
        return fleet

    def copy(self) -> "Fleet":
        """Return an independent copy, for pods to come and go; nodes stay as they are."""
        twin = object.__new__(Fleet)
        for name, value in vars(self).items():
            match value:
                case np.ndarray() | list() | dict():
                    setattr(twin, name, value.copy())
                case _:
                    setattr(twin, name, value)
        twin._device_clients = {place: list(clients) for place, clients in self._device_clients.items()}
        twin._larger = {place: dict(larger) for place, larger in self._larger.items()}
        return twin

    def take(self, node: int, need: Need, shares: Sequence[Share]) -> None:
        """Allocate a pod its cpu, memory and shares. They must fit: `Demand` and `serve` ensure that."""
        self.room[CPU, node] -= need.cpu_milli
        self.room[MEMORY, node] -= need.memory_mib
        self.room[PODS, node] -= 1
        for share in shares:
            self.hold(node, share)

    def give(self, node: int, need: Need, shares: Sequence[Share]) -> None:
        """Undo `take`; the arrays are as before it."""
        self.room[:, node] += (need.cpu_milli, need.memory_mib, 1)
        for share in shares:
            self.drop(node, share)

    def hold(self, node: int, share: Share) -> None:
        """Allocate one share."""
        self._change(node, share, 1)

    def drop(self, node: int, share: Share) -> None:
        """Release one share."""
        self._change(node, share, -1)

    def clear(self, node: int, row: int) -> None:
        """Release everything on one GPU."""
        gpu_type = self.types[self.kind[row, node]]
        self.used[row, node] = self.clients[row, node] = self.closed[row, node] = 0
        self._created.pop((row, node), None)
        self._larger.pop((row, node), None)
        if gpu_type.devices:
            self._device_clients[row, node] = [0] * len(gpu_type.devices)
        self._change_whole(row, node, gpu_type, -1)

    def close(self, node: int, row: int, why: int) -> None:
        """Close one GPU until it is cleared (`why`: as `closed`); no share may be taken or given on it meanwhile."""
        self.clear(node, row)
        self.closed[row, node] = why
        self.clients[row, node] = 1
        for array in (self.serves, self.compute_left, self.memory_left, self.remaining):
            array[row, node] = 0
        self.amounts[:, row, node] = -1
        self.offers[:, row, node] = 0

    def row_of(self, node: int, gpu: int) -> int | None:
        """Return the row of the GPU of that index; None where the node has none."""
        return self._column[node].get(gpu)

    def state(self, node: int) -> bytes:
        """Return everything that decides what one node's GPUs can still serve; equal states are interchangeable."""
        columns = self.serves, self.compute_left, self.memory_left, self.used, self.offers
        return b"".join(array[..., node].tobytes() for array in columns)

    def free_start(self, node: int, row: int, option: Option) -> int | None:
        """Return the start of the first device of the option's class on a GPU with a free client.

        None where the device is the whole GPU. Raises: StopIteration where no client is free.
        """
        devices = zip(self.types[self.kind[row, node]].devices, self._free(row, node), strict=True)
        desired = class_of(option)
        device = next(device for device, free in devices if free and class_of(device) == desired)
        return device.placement.start if device.placement else None

    def layouts(self) -> tuple[tuple[tuple[Placement, ...], ...], ...]:
        """Return for every node and GPU the MIG instances: those created for a pod, and other existing ones."""
        return tuple(
            tuple(self._layout(row, node) for row in range(len(index))) for node, index in enumerate(self.gpu_index)
        )

    def _change(self, node: int, share: Share, sign: int) -> None:
        row = self._column[node][share.gpu]
        gpu_type = self.types[self.kind[row, node]]
        self.clients[row, node] += sign
        device = gpu_type.device_of(share)
        if share.mode is Mode.WHOLE:
            self._change_whole(row, node, gpu_type, sign)
        elif device is not None:
            self._count_larger(row, node, device, share, sign)
            self._change_device(row, node, device, sign)
        elif share.mode is Mode.MIG:
            placement = placement_at(gpu_type.model, share.profile or "", share.start or 0)
            self._change_instance(row, node, placement, sign)
        else:
            self._change_amount(row, node, share, sign)

    def _change_amount(self, row: int, node: int, share: Share, sign: int) -> None:
        total = self.types[self.kind[row, node]].memory_mib
        compute = self.compute_left[row, node] - sign * share.compute_percent
        memory = self.memory_left[row, node] - sign * share.memory_mib
        self.compute_left[row, node] = compute
        self.memory_left[row, node] = memory
        self.remaining[row, node] = min(compute, 100 * memory // total) if total else compute
        self._commit(row, node, MODE_BIT[share.mode])

    def _change_whole(self, row: int, node: int, gpu_type: GpuType, sign: int) -> None:
        taken = sign > 0
        self.compute_left[row, node] = self.remaining[row, node] = 0 if taken else 100
        self.memory_left[row, node] = 0 if taken else gpu_type.memory_mib
        self._commit(row, node, 0)

    def _change_instance(self, row: int, node: int, placement: Placement, sign: int) -> None:
        created = self._created.get((row, node), ())
        if sign > 0:
            self._created[row, node] = (*created, placement)
        else:
            self._created[row, node] = tuple(p for p in created if p != placement)
        self._recount(row, node)
        self._commit(row, node, MODE_BIT[Mode.MIG])

    def _count_larger(self, row: int, node: int, device: int, share: Share, sign: int) -> None:
        """Count what a share has beyond a client's part of its device: the number of clients was another once."""
        part = self.types[self.kind[row, node]].devices[device]
        if part.clients == 1 or (share.memory_mib, share.compute_percent) == (part.memory_mib, part.compute_percent):
            return
        larger = self._larger.setdefault((row, node), {})
        memory_mib, percent = larger.get(device, (0, 0))
        larger[device] = (
            memory_mib + sign * (share.memory_mib - part.memory_mib),
            percent + sign * (share.compute_percent - part.compute_percent),
        )

    def _change_device(self, row: int, node: int, device: int, sign: int) -> None:
        clients = self._device_clients[row, node]
        clients[device] += sign
        if clients[device] == (sign > 0):  # the first client came or the last one left
            self._recount(row, node)
        self._commit(row, node, MODE_BIT[Mode.MIG])

    def _recount(self, row: int, node: int) -> None:
        """Set the MIG state of a GPU to that of its instances in use; they may share the media bits."""
        gpu_type = self.types[self.kind[row, node]]
        used = 0
        for placement in self._created.get((row, node), ()):
            used |= occupied(gpu_type.model, placement)
        for bits, clients in zip(gpu_type.bits, self._device_clients.get((row, node), ()), strict=False):
            used |= bits if clients else 0
        self.used[row, node] = used

    def _commit(self, row: int, node: int, mode: int) -> None:
        """Commit a GPU in use to its mode, and free an empty one."""
        gpu_type = self.types[self.kind[row, node]]
        serves = gpu_type.serves & mode if self.clients[row, node] else gpu_type.serves
        self.serves[row, node] = serves
        for each, bit in enumerate(_AMOUNT_BITS):
            self.amounts[each, row, node] = self.compute_left[row, node] if serves & bit else -1
        if gpu_type.devices:
            self._offer(row, node)
        if gpu_type.fixed:
            clients = [device.clients for device in gpu_type.devices]
            self.remaining[row, node] = 100 - 100 * sum(self._device_clients[row, node]) // sum(clients)
        elif mode == MODE_BIT[Mode.MIG]:
            slices = gpu_type.model.memory_slices
            free = slices - (int(self.used[row, node]) & ((1 << slices) - 1)).bit_count()
            self.remaining[row, node] = 100 * free // slices

    def _offer(self, row: int, node: int) -> None:
        """Recount the free clients of one GPU's devices."""
        gpu_type = self.types[self.kind[row, node]]
        self.offers[:, row, node] = 0
        for device, free in zip(gpu_type.devices, self._free(row, node), strict=True):
            self.offers[self.classes[class_of(device)], row, node] += free

    def _free(self, row: int, node: int) -> list[int]:
        """Return the free clients of each device of a GPU; none where its slices are used or the GPU is shared."""
        gpu_type = self.types[self.kind[row, node]]
        clients = self._device_clients[row, node]
        used = int(self.used[row, node])
        alive = gpu_type.fixed or used or not self.clients[row, node]  # else it is taken whole or by amounts
        free = [
            device.clients - count if alive and (count or not used & bits) else 0
            for device, bits, count in zip(gpu_type.devices, gpu_type.bits, clients, strict=True)
        ]
        for number, (more_mib, more_percent) in self._larger.get((row, node), {}).items():
            device, count = gpu_type.devices[number], clients[number]
            memory_mib, percent = count * device.memory_mib + more_mib, count * device.compute_percent + more_percent
            free[number] = min(free[number], free_clients(gpu_type, device, count, memory_mib, percent))
        return free

    def _layout(self, row: int, node: int) -> tuple[Placement, ...]:
        gpu_type = self.types[self.kind[row, node]]
        created = self._created.get((row, node), ())
        if not gpu_type.devices:
            return tuple(sorted(created))
        standing = zip(gpu_type.devices, self._free(row, node), self._device_clients[row, node], strict=True)
        return tuple(sorted((*created, *(d.placement for d, free, count in standing if d.placement and free + count))))

    def _resume(self, running: Running, in_use: dict[tuple[int, int], dict[PodKey, list[Share]]]) -> None:
        """Allocate a running pod its shares, and put them with those of their GPUs.

        Raises:
            InvalidInput: the fleet does not have its node, or the node not its GPU.

        """
        assignment = running.assignment
        node = self.index.get(assignment.node)
        if node is None:
            raise InvalidInput(
                f"pod {assignment.pod}",
                found=f"it runs on node {assignment.node}, which the fleet does not have",
                hint="add the node",
            )
        self.take(node, running.pod.need, ())
        for share in assignment.shares:
            if share.gpu not in self._column[node]:
                raise impossible_share(assignment.pod, assignment.node, share.gpu, "the node does not have it")
            in_use.setdefault((node, share.gpu), {}).setdefault(assignment.pod, []).append(share)

    def _check(self, node: int, gpu: int, in_use: Mapping[PodKey, Sequence[Share]]) -> None:
        """Allocate the shares of running pods on one GPU. Raises: InvalidInput if they cannot coexist there."""
        gpu_type = self.types[self.kind[self._column[node][gpu], node]]
        fault = next(faults(gpu_type, in_use), None)
        if fault is not None:
            raise impossible_share(fault.holders[-1], self.nodes[node].name, gpu, fault.text)
        for share in (each for shares in in_use.values() for each in shares):
            self.hold(node, share)


def impossible_share(pod: PodKey, node: NodeName, gpu: int, why: str) -> InvalidInput:
    """Return that a running pod cannot have its recorded share of a GPU."""
    hint = "correct its annotation, or delete the pod"
    return InvalidInput(f"pod {pod} on node {node}", found=f"GPU {gpu}: {why}", hint=hint)


def _size(node: Node) -> tuple[int, int, int]:
    return node.cpu_milli, node.memory_mib, node.max_pods


def _padded(array: Ints, shape: tuple[int, ...], fill: int) -> Ints:
    """Return an array of a larger shape that begins with this one."""
    larger = np.full(shape, fill, dtype=np.int64)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger
