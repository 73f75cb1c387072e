"""The stores of ModelCaches, and the node's own folders that are allowed as sources."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tessera.clients.store import ObjectStore, open_store
from tessera.clients.store.folders import FolderStore
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.errors import InvalidInput, shown

__all__ = ["ModelSources"]

_ENDPOINTS = {
    "s3": "AWS_ENDPOINT_URL",
    "gs": "STORAGE_EMULATOR_HOST",
    "az": "AZURE_STORAGE_SERVICE_ENDPOINT",
    "hf": "HF_ENDPOINT",
}
"""By kind of source, the name of the setting with its endpoint."""


class ModelSources(msgspec.Struct, frozen=True):
    """The sources of a node's models.

    Args:
        folders: folders of the host that may contain `file://` sources.
        root: the host's root folder.

    """

    folders: tuple[Path, ...] = ()
    root: Path = Path("/")

    def open(self, model: DesiredModel, credentials: Mapping[str, str]) -> ObjectStore:
        """Return the store of a model.

        Raises:
            InvalidInput: no such kind of source, or a folder that is not allowed.

        """
        scheme, _, rest = model.source.partition("://")
        if scheme == "file":
            return self._folder(model.source, Path(os.path.normpath(rest)))
        endpoint = _ENDPOINTS.get(scheme)
        environment = {
            **({endpoint: model.endpoint} if endpoint else {}),
            **({"AWS_REGION": model.region} if model.region else {}),
            **credentials,
        }
        return open_store(model.source, environment)

    def _folder(self, source: str, path: Path) -> ObjectStore:
        within = next((each for each in self.folders if path.is_relative_to(each)), None)
        if within is None:
            allowed = ", ".join(str(each) for each in self.folders) or "none"
            raise InvalidInput(
                f"source {shown(source)}",
                found="models do not come from this folder of the node",
                hint=f"name one below {allowed}, or set the chart's value agent.modelSourceFolder",
            )
        return FolderStore(path, root=self.root, within=within)
