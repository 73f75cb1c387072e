"""Who served which chunk of an object, whether all of it is right, and which peer was wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.peers.provenance import EARLIER, STORE, Provenance
from tessera.core.storage.models.revisions import CHUNK_BYTES

COUNT = 4
RIGHT = ["a", "b", "c", "d"]


def of(origins: str, digests: list[str] | None = None, listed: str = "md5:sum") -> Provenance:
    """Return what is known where each chunk came from one of these: a letter is a peer, `-` the store."""
    made = Provenance(listed, (COUNT - 1) * CHUNK_BYTES + 1)
    made.origins = {chunk: STORE if origin == "-" else origin for chunk, origin in enumerate(origins)}
    made.digests = list(digests or RIGHT)
    made.summed = len(origins)
    return made


def test_only_the_whole_with_the_stores_checksum_is_right() -> None:
    assert of("x-?-").is_right_with("sum")
    assert not of("x-?-").is_right_with("other")
    assert not of("x-?").is_right_with("sum")
    stale = of("x-?-")
    stale.stale = True
    assert (stale.is_right_with("sum"), stale.is_summed) == (False, True)
    stale.restart()
    assert (stale.stale, stale.summed, stale.is_summed) == (False, 0, False)


def test_where_nothing_proves_it_all_must_be_from_the_store() -> None:
    for one, want in ((of("----"), True), (of("x---"), False)):
        one.provable = False
        assert one.is_right_with("") is want
    assert of("----", listed="md5-4:sum").is_right_with("other"), "nobody knows how large the parts are"
    assert not of("x---", listed="md5-4:sum").is_right_with("other")


def test_all_that_a_peer_served_is_discarded_and_nothing_of_others() -> None:
    made = of("xy-x")
    assert made.unproven == {0: "x", 1: "y", 3: "x"}
    assert made.drop("x") == [0, 3]
    assert made.drop("x") == []
    assert made.origins == {1: "y", 2: STORE}


@given(
    st.lists(st.sampled_from(["x", "y", STORE, EARLIER]), min_size=COUNT, max_size=COUNT), st.sets(st.integers(0, 3))
)
def test_whoever_served_wrong_chunks_is_named_and_nobody_else(origins: list[str], wrong: set[int]) -> None:
    made = of("----", [f"wrong {each}" if at in wrong else each for at, each in enumerate(RIGHT)])
    made.origins = dict(enumerate(origins))
    for peer in ("x", "y", EARLIER):
        made.drop(peer)
    made.digests = list(RIGHT)
    want = {origin for chunk, origin in enumerate(origins) if origin != STORE and chunk in wrong}
    assert set(made.wrong_peers) == want
    assert all(origins[chunk] == peer and chunk in wrong for peer, chunk in made.wrong_peers.items())


# what is there, who serves it again, whether that is the same: (whether it is written, who was wrong, whose it is then)
RECEIVED: dict[tuple[str | None, str, bool], tuple[bool, str, str | None]] = {
    (None, "x", True): (True, "", None),
    (None, STORE, True): (True, "", None),
    ("x", "y", True): (False, "", "x"),
    ("x", "y", False): (False, "", "x"),
    ("x", STORE, True): (False, "", STORE),
    ("x", STORE, False): (True, "x", "x"),
    (EARLIER, STORE, True): (False, "", STORE),
    (EARLIER, STORE, False): (True, "", EARLIER),
    (EARLIER, "x", False): (False, "", EARLIER),
    (STORE, "x", True): (False, "", STORE),
    (STORE, "x", False): (False, "x", STORE),
    (STORE, STORE, True): (False, "", STORE),
    (STORE, STORE, False): (True, "", STORE),
}


@pytest.mark.parametrize("case", RECEIVED)
def test_the_stores_chunk_replaces_a_peers_which_replaces_nothing(case: tuple[str | None, str, bool]) -> None:
    former, origin, same = case
    made = of("")
    if former is not None:
        made.put(0, "there", former)
    write, wrong, want = RECEIVED[case]
    assert made.receive(0, "there" if same else "another", origin) == (write, wrong)
    assert made.origins.get(0) == want
    if write:
        made.put(0, "another", origin)
        assert (made.digests[0], made.origins[0], made.stale) == ("another", origin, former is not None)
