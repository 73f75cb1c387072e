"""The model cache of a node: fetches the models of ModelCaches, offers them to pods, keeps those in use."""

from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.modelcache.keeper import ModelKeeper, Places
from tessera.agent.storage.modelcache.sources import ModelSources

__all__ = ["ModelDisk", "ModelKeeper", "ModelSources", "Places"]
