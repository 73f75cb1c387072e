"""Models on a node's disk and their fetches, for plans."""

from typing import Any

import msgspec

from tessera.core.storage.models.cachedmodels import ModelOnDisk, ModelOnNode
from tessera.core.storage.models.fetchhistory import FetchHistory, fetch_history
from tessera.core.storage.models.nodemodels import DesiredModel, ObservedModel
from tessera.core.storage.models.retention import RevisionOnDisk

ONE, TWO = "1" * 64, "2" * 64


MIB = 2**20


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


def histories(**reports: ObservedModel) -> dict[str, FetchHistory]:
    """Return what came of fetches, by the reports on them."""
    return {name: FetchHistory(each, each.identity) for name, each in reports.items()}


def needing(missing_bytes: int, **more: Any) -> FetchHistory:
    """Return the history of model `big`, which did not fit."""
    return msgspec.structs.replace(fetch_history("big"), room="Needed", missing_bytes=missing_bytes, **more)


def there(*kept: RevisionOnDisk, current: str = ONE, **more: Any) -> ModelOnNode:
    return ModelOnNode(ModelOnDisk(current, tuple(each.revision for each in kept)), revisions=kept, **more)
