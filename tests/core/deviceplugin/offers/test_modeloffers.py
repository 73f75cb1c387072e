"""What a node offers the kubelet of a model."""

from tessera.core.deviceplugin.offers.modeloffers import (
    CLIENTS,
    allocated_revisions,
    model_offer,
    mount_path,
    path_variable,
)

ONE, TWO = "1" * 64, "2" * 64


def test_a_device_says_whose_mount_it_is() -> None:
    offer = model_offer("llama", ONE)
    assert (offer.name, len(offer.devices)) == ("models.tessera.dev/llama", CLIENTS)
    assert len({each.id for each in offer.devices}) == CLIENTS
    assert max(len(each.id) for each in offer.devices) <= 63
    assert model_offer("llama", "").devices == ()
    ids = [offer.devices[7].id, "nonsense", "GPU-1::0"]
    assert allocated_revisions(ids, (ONE, TWO)) == {ONE}
    assert allocated_revisions((), (ONE,)) == frozenset()


def test_a_container_learns_where_a_model_is() -> None:
    assert (path_variable("llama-3-8b"), mount_path("llama")) == ("TESSERA_MODEL_LLAMA_3_8B_PATH", "/models/llama")
