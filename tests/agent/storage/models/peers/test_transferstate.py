"""The state of a shared transfer: when a pass is complete, and when the transfer is over."""

import pytest

from harness.sharedfetches import FIRST, SharedFetch, part
from tessera.core.storage.models.peers.provenance import STORE
from tessera.errors import Unavailable


def test_the_first_failure_stays_and_ends_the_pass(fetch: SharedFetch) -> None:
    state = fetch.chunks.state
    first, second = Unavailable("a", found="b", hint="c"), Unavailable("d", found="e", hint="f")
    state.raise_failure()
    state.fail(first)
    state.fail(second)
    assert (state.wait(), state.is_over) == (False, True)
    with pytest.raises(Unavailable) as raised:
        state.raise_failure()
    assert raised.value is first


def test_a_pass_is_complete_when_all_that_it_lacks_has_arrived(fetch: SharedFetch) -> None:
    state = fetch.chunks.state
    state.expect([(0, 0), (0, 1)])
    for chunk in (0, 1):
        assert state.is_missing((0, chunk))
        fetch.chunks.keep((0, chunk), part(FIRST, chunk), STORE)
    assert (state.wait(), state.is_over) == (True, False)


def test_a_chunk_has_its_place_in_its_file(fetch: SharedFetch) -> None:
    file, first, view = fetch.chunks.state.span((0, 2), memoryview(bytearray(100)))
    assert (file.stored.path, len(FIRST) - first, len(view)) == ("first.bin", 7, 7)
