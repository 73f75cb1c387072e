"""The cluster's state of a model server, by the fields of its Deployment, of its autoscaler's bounds, and its own."""

from typing import Any

import msgspec

from tessera.core.serving.autoscaling.serverfacts import HpaBounds, ModelDeployment, ServerFacts

__all__ = ["changed_facts", "server_facts"]

_DEPLOYMENT = ModelDeployment(name="llm", replicas=1, slots=8, cold_start_s=None, problem="")
_BOUNDS = HpaBounds(name="llm", deployment="llm", min_replicas=1, max_replicas=5, uses_tessera_replicas=True)


def server_facts(**fields: Any) -> ServerFacts:
    """Return a server with eight slots, scaled from one to five replicas by Tessera's decision, with other fields."""
    return changed_facts(ServerFacts(deployment=_DEPLOYMENT, bounds=_BOUNDS), **fields)


def changed_facts(facts: ServerFacts, **fields: Any) -> ServerFacts:
    """Return the facts with other fields of the Deployment, of the bounds, and their own."""
    for part in ("deployment", "bounds"):
        record = getattr(facts, part)
        own = {name: fields.pop(name) for name in [*fields] if name in record.__struct_fields__}
        facts = msgspec.structs.replace(facts, **{part: msgspec.structs.replace(record, **own)})
    return msgspec.structs.replace(facts, **fields)
