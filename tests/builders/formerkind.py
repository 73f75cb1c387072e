"""A cluster whose chart is older than its agents."""

from tessera.clients.kube import GPU_NODES, Kind, MemoryKube, Object, Subresource

__all__ = ["FormerKind"]


class FormerKind(MemoryKube):
    """An API server whose kind GPUNode lacks `status.offered` while `prunes`: what is written there is forgotten."""

    prunes = True

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Subresource = ""
    ) -> Object:
        if self.prunes and kind == GPU_NODES and "status" in body:
            body = {**body, "status": {key: value for key, value in body["status"].items() if key != "offered"}}
        return await super().patch(kind, name, body, namespace=namespace, subresource=subresource)
