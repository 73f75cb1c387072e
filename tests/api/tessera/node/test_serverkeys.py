"""The file of the servers' keys: written and read back, and as earlier agents wrote it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.tessera.node.serverkeys import read_server_keys, write_server_keys
from tessera.core.cluster.protocols.keyring import KeyRing
from tessera.errors import InvalidInput

FIRST = b'{"public":{"0a":"AQI="},"revoked":["0b"],"uid":"u","version":7,"shown":["0a"]}'
RING = KeyRing(public={"0a": b"\x01\x02"}, revoked=frozenset({"0b"}), uid="u", version=7, shown=frozenset({"0a"}))


RINGS = st.builds(
    KeyRing,
    public=st.dictionaries(st.text(), st.binary()),
    revoked=st.frozensets(st.text()),
    uid=st.text(),
    version=st.integers(0, 2**63 - 1),
    shown=st.frozensets(st.text()),
)


@given(ring=RINGS)
def test_a_ring_is_read_back(ring: KeyRing) -> None:
    assert read_server_keys(write_server_keys(ring), "keys") == ring


def test_what_earlier_agents_wrote_is_read_and_the_form_of_today_stays_as_it_is() -> None:
    assert read_server_keys(FIRST, "keys") == RING
    assert write_server_keys(RING) == b'{"version":1,"ring":' + FIRST + b"}"
    assert read_server_keys(write_server_keys(RING), "keys") == RING


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        FIRST[:-5],
        FIRST.replace(b"shown", b"seen"),
        b'{"version":2,"ring":' + FIRST + b"}",
        b'{"version":1,"ring":{"public":{"0a":"*"}}}',
    ],
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^keys: "):
        read_server_keys(content, "keys")
