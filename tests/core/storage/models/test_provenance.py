"""Who gave which chunk of an object, whether all of it is right, and who lied."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.provenance import EARLIER, STORE, Provenance
from tessera.core.storage.models.revisions import CHUNK_BYTES

COUNT = 4
RIGHT = ["a", "b", "c", "d"]


def of(givers: str, digests: list[str] | None = None, listed: str = "md5:sum") -> Provenance:
    """Return what is known where each chunk came from one of these: a letter is a peer, `-` the store."""
    made = Provenance(listed, (COUNT - 1) * CHUNK_BYTES + 1)
    made.givers = {chunk: STORE if giver == "-" else giver for chunk, giver in enumerate(givers)}
    made.digests = list(digests or RIGHT)
    made.summed = len(givers)
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


def test_all_that_a_peer_gave_is_dropped_and_nothing_of_others() -> None:
    made = of("xy-x")
    assert made.unproven == {0: "x", 1: "y", 3: "x"}
    assert made.drop("x") == [0, 3]
    assert made.drop("x") == []
    assert made.givers == {1: "y", 2: STORE}


@given(
    st.lists(st.sampled_from(["x", "y", STORE, EARLIER]), min_size=COUNT, max_size=COUNT), st.sets(st.integers(0, 3))
)
def test_whoever_lied_is_named_and_nobody_else(givers: list[str], wrong: set[int]) -> None:
    made = of("----", [f"wrong {each}" if at in wrong else each for at, each in enumerate(RIGHT)])
    made.givers = dict(enumerate(givers))
    for peer in ("x", "y", EARLIER):
        made.drop(peer)
    made.digests = list(RIGHT)
    want = {giver for chunk, giver in enumerate(givers) if giver != STORE and chunk in wrong}
    assert set(made.lies) == want
    assert all(givers[chunk] == peer and chunk in wrong for peer, chunk in made.lies.items())
