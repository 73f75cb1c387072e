"""The ring of public keys: what counts follows from all versions of all objects that were seen, in order."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.cluster.keyring import KeyRing

NAMES = ("k1", "k2", "k3", "k4")
VERSIONS = st.tuples(st.sampled_from(("u1", "u2", "u3")), st.frozensets(st.sampled_from(NAMES)))


def keys(*names: str) -> dict[str, bytes]:
    return {name: name.encode() for name in names}


def after(history: list[tuple[str, frozenset[str]]]) -> KeyRing:
    """Return the ring after objects, each with its UID and the keys it shows; versions count from 1."""
    ring = KeyRing()
    for version, (uid, names) in enumerate(history, 1):
        ring = ring.saw(uid, version, keys(*names))
    return ring


@given(st.lists(VERSIONS, max_size=8))
def test_a_key_counts_unless_the_object_that_showed_it_last_went_on_without_it(
    history: list[tuple[str, frozenset[str]]],
) -> None:
    ring = after(history)
    for name in NAMES:
        shown = [at for at, (_, names) in enumerate(history) if name in names]
        if not shown:
            assert name not in ring.public
            assert name not in ring.revoked
            continue
        later = history[shown[-1] + 1 :]
        taken_out = bool(later) and later[0][0] == history[shown[-1]][0]
        assert (name in ring.revoked) == taken_out
        assert (name in ring.public) == (not taken_out)
    assert set(ring.public) | ring.revoked <= {name for _, names in history for name in names}
    assert ring.shown == (history[-1][1] if history else frozenset())


@given(st.lists(VERSIONS, min_size=1, max_size=6), VERSIONS, st.integers(0, 6))
def test_what_is_no_later_than_what_was_seen_says_nothing(
    history: list[tuple[str, frozenset[str]]], late: tuple[str, frozenset[str]], version: int
) -> None:
    ring = after(history)
    assert ring.saw(late[0], min(version, len(history)), keys(*late[1])) is ring


def test_another_object_of_that_name_takes_nothing_away_until_its_own_entry_is_removed() -> None:
    """Deleted, and written again by a server that has one key: the former ones count, and can be revoked there."""
    ring = KeyRing().saw("u1", 1, keys("old", "new")).saw("u2", 2, keys("new"))
    assert set(ring.public) == {"old", "new"}
    assert ring.public.keys() - ring.shown == {"old"}
    ring = ring.saw("u2", 3, keys("new", "old")).saw("u2", 4, keys("new"))
    assert set(ring.public) == {"new"}
    assert ring.revoked == {"old"}
    assert ring.saw("u3", 5, keys("old")).revoked == frozenset()
