"""The stores of ModelCaches, and the node's own folders that are allowed as sources."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tessera.clients.store import ObjectStore, open_store
from tessera.clients.store.folders import FolderStore
from tessera.core.storage.models.endpoints import ENDPOINTS, reveals_credentials
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.errors import InvalidInput, shown

__all__ = ["ModelSources"]


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
            InvalidInput: no such kind of source, a folder that is not allowed, or an endpoint that must not get the
                credentials.

        """
        scheme, _, rest = model.source.partition("://")
        if scheme == "file":
            return self._folder(model.source, Path(os.path.normpath(rest)))
        if reveals_credentials(scheme, model.endpoint, credentials):
            raise InvalidInput(
                f"model {model.name}: spec.endpoint",
                found=f"{shown(model.endpoint)} would get credentials that are not for it",
                hint=f"name it in the Secret too, by the key {ENDPOINTS[scheme]}, or leave it out",
            )
        environment = dict(credentials)
        if scheme in ENDPOINTS and model.endpoint:
            environment[ENDPOINTS[scheme]] = model.endpoint
        if model.region:
            environment["AWS_REGION"] = model.region
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
