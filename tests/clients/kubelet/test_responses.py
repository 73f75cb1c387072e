"""A device plugin's answer in the kubelet's form, and back."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.clients.kubelet.responses import from_wire, response_of, to_wire
from tessera.core.deviceplugin.containerresponse import ContainerMount, ContainerResponse, DeviceNode

TEXT = st.text("aZ/:=,é", max_size=5)
PAIRS = st.dictionaries(TEXT, TEXT, max_size=3).map(lambda found: tuple(sorted(found.items())))
RESPONSES = st.builds(
    ContainerResponse,
    env=PAIRS,
    mounts=st.lists(
        st.builds(ContainerMount, host_path=TEXT, container_path=TEXT, read_only=st.booleans()), max_size=2
    ).map(tuple),
    device_nodes=st.lists(st.builds(DeviceNode, host_path=TEXT, container_path=TEXT, permissions=TEXT), max_size=2).map(
        tuple
    ),
    annotations=PAIRS,
    cdi_devices=st.lists(TEXT, max_size=2).map(tuple),
)


@given(RESPONSES)
def test_an_answer_is_read_as_it_was_written(response: ContainerResponse) -> None:
    assert from_wire(to_wire(response)) == response
    assert response_of(to_wire(response).SerializeToString()) == response


def test_what_is_no_answer() -> None:
    assert response_of(b"\xff") is None
    assert response_of(b"") == ContainerResponse()
