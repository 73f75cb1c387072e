"""The label `nvidia.com/mig.config` of a node, which may name one configuration."""

from collections.abc import Awaitable, Callable, Mapping

from tessera.core.node.layouts import Group, LayoutRequest


class MineLabel:
    """A label that may name the configuration `mine`; `reported` gets each report."""

    def __init__(self, group: Group, reported: Callable[[LayoutRequest], Awaitable[None]]) -> None:
        self._group = group
        self._reported = reported

    def configurations(self) -> Mapping[str, tuple[Group, ...]]:
        return {"mine": (self._group,)}

    async def report(self, request: LayoutRequest) -> None:
        await self._reported(request)
