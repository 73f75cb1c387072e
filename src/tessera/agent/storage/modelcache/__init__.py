"""The model cache of a node: fetches what ModelCaches want there, offers it to pods, keeps what they use."""

from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.modelcache.keeper import ModelKeeper, Places
from tessera.agent.storage.modelcache.sources import ModelSources

__all__ = ["ModelDisk", "ModelKeeper", "ModelSources", "Places"]
