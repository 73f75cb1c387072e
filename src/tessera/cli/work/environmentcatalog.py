"""The environments of a cluster."""

from tessera.api.tessera.v1alpha1.environments import Catalog, read_catalog
from tessera.clients.kube import ENVIRONMENTS, Forbidden, Kube
from tessera.errors import Unavailable

__all__ = ["read_environments"]


async def read_environments(kube: Kube) -> Catalog:
    """Return the environments of a cluster.

    Raises:
        Unavailable: the cluster does not answer, lacks the CRD, or forbids it.

    """
    try:
        return read_catalog((await kube.list(ENVIRONMENTS)).objects)
    except Forbidden as error:
        fix = "request ClusterRole tessera-environments, which the chart binds to all users, or pass --image"
        raise Unavailable("environments", found=error.found, hint=fix) from error
