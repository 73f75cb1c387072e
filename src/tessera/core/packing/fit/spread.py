"""Values by GPU type, spread over the GPUs of a fleet, for nodes that come, go and change."""

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tessera.core.packing.fit.fleet import Fleet

__all__ = ["Spread"]

T = TypeVar("T", bound=np.generic)


class Spread(Generic[T]):
    """For each GPU of a fleet the table's value of its type; columns are renewed when their GPUs change.

    Valid as long as the fleet keeps its shape.

    Args:
        fleet: the fleet.
        table: the values, `(types,)`.
        first: whether to describe only the first GPU of each node, of the absent type where there is no GPU at all.

    """

    def __init__(self, fleet: Fleet, table: NDArray[T], *, first: bool = False) -> None:
        self._rewired = fleet.rewired
        self._table = table
        self._kind = fleet.kind[0] if first and len(fleet.kind) else fleet.kind
        if first and not len(fleet.kind):
            self._kind = np.zeros(len(fleet.nodes), dtype=np.int64)
        self._values: NDArray[T] = table[self._kind]
        self._read = len(fleet.rewired)

    @property
    def values(self) -> NDArray[T]:
        """The values, `(gpus, nodes)`, or `(nodes,)` of the first GPUs."""
        if self._read != len(self._rewired):
            nodes = self._rewired[self._read :]
            self._values[..., nodes] = self._table[self._kind[..., nodes]]
            self._read = len(self._rewired)
        return self._values
