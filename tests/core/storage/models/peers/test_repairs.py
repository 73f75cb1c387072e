"""What is fetched again of wrong objects: whoever served a wrong chunk is found, and in the end all is the store's."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.peers.provenance import EARLIER, STORE, Provenance
from tessera.core.storage.models.peers.repairs import Suspect, discarded, from_store_alone, is_stale, suspects
from tessera.core.storage.models.revisions import CHUNK_BYTES


def of(origins: str) -> Provenance:
    """Return an object whose chunks came from these: a letter is a peer, `-` the store, a space nobody yet."""
    made = Provenance("md5:sum", (len(origins) - 1) * CHUNK_BYTES + 1)
    for chunk, origin in enumerate(origins):
        if origin != " ":
            made.put(chunk, "digest", STORE if origin == "-" else origin)
    return made


def test_one_chunk_of_each_peer_is_requested_of_others_first_and_of_few_peers_before_many() -> None:
    wrong = {0: of("xyxz"), 1: of("-x?x"), 2: of("----")}
    assert list(suspects(wrong)) == [
        Suspect(1, 1, "x"),
        Suspect(1, 3, "x"),
        Suspect(0, 0, "x"),
        Suspect(0, 1, "y"),
        Suspect(0, 3, "z"),
        Suspect(0, 2, "x"),
    ]


def test_what_the_store_replaced_meanwhile_is_not_requested() -> None:
    wrong = {0: of("x"), 1: of("xy")}
    asked = suspects(wrong)
    assert next(asked) == Suspect(0, 0, "x")
    wrong[1].put(0, "another", STORE)
    assert list(asked) == [Suspect(1, 1, "y")]
    assert is_stale(wrong)


def test_all_that_a_peer_served_of_wrong_objects_is_discarded_and_it_is_excluded_for_them() -> None:
    wrong = {0: of("xy"), 3: of("-x")}
    assert discarded(wrong, ["x", "z"]) == [(0, 0), (3, 1)]
    assert discarded(wrong, ["x"]) == []
    assert [sorted(each.excluded) for each in wrong.values()] == [["x", "z"], ["x", "z"]]
    assert wrong[0].origins == {1: "y"}


def test_in_the_end_all_that_is_not_the_stores_own_is_read_from_it() -> None:
    wrong = {0: of("x-"), 1: of("?y")}
    assert from_store_alone(wrong) == [(0, 0), (1, 0), (1, 1)]
    assert all(each.alone for each in wrong.values())
    own = {0: of("--")}
    assert from_store_alone(own) == []
    assert not own[0].alone


PEERS = "xyz"


@given(
    st.lists(st.lists(st.sampled_from([*PEERS, STORE, EARLIER]), min_size=1, max_size=5), min_size=1, max_size=3),
    st.data(),
)
def test_the_peer_that_is_found_first_served_a_wrong_chunk(served: list[list[str]], data: st.DataObject) -> None:
    """Where the peers that are asked are right, whoever differs from them was wrong; nothing of others goes."""
    objects = {index: Provenance("md5:sum", (len(each) - 1) * CHUNK_BYTES + 1) for index, each in enumerate(served)}
    bad = data.draw(st.sets(st.sampled_from(PEERS)))
    for index, origins in enumerate(served):
        for chunk, origin in enumerate(origins):
            false = origin in bad and data.draw(st.booleans())
            objects[index].put(chunk, "wrong" if false else "right", origin)
    found = next(
        (each for each in suspects(objects) if objects[each.object_index].digests[each.chunk] == "wrong"), None
    )
    wrong = {
        (index, chunk) for index, each in objects.items() for chunk in each.origins if each.digests[chunk] == "wrong"
    }
    assert (found is None) == (not wrong), "every wrong chunk is asked for"
    if found is not None:
        gone = discarded(objects, [found.peer])
        assert found.peer in bad
        assert all(served[index][chunk] == found.peer for index, chunk in gone)
        assert {each for each in wrong if served[each[0]][each[1]] == found.peer} <= set(gone)
