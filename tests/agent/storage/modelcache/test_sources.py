"""The stores that ModelCaches name, and what they get to know."""

import pytest

from tessera.agent.storage.modelcache import ModelSources
from tessera.clients.store.hub import HubStore
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.errors import InvalidInput


def test_a_token_goes_to_another_endpoint_only_if_the_secret_names_that_too() -> None:
    model = DesiredModel(name="m", source="hf://owner/name", endpoint="http://127.0.0.1:9", secret="hub")
    with pytest.raises(InvalidInput, match="by the key HF_ENDPOINT, or leave it out"):
        ModelSources().open(model, {"HF_TOKEN": "hf_secret"})
    bound = {"HF_TOKEN": "hf_secret", "HF_ENDPOINT": "http://127.0.0.1:9"}
    for credentials in ({}, bound):
        store = ModelSources().open(model, credentials)
        assert isinstance(store, HubStore)
        store.close()
