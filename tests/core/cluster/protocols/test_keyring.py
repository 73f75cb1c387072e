"""The ring of public keys: what counts follows from all versions of all objects that were seen, in order."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.cluster.protocols.keyring import KeyRing

NAMES = ("k1", "k2", "k3", "k4")
VERSIONS = st.tuples(st.sampled_from(("u1", "u2", "u3")), st.frozensets(st.sampled_from(NAMES)))


def keys(*names: str) -> dict[str, bytes]:
    return {name: name.encode() for name in names}


def after(history: list[tuple[str, frozenset[str]]]) -> KeyRing:
    """Return the ring after objects, each with its UID and the keys it shows; versions count from 1."""
    ring = KeyRing()
    for version, (uid, names) in enumerate(history, 1):
        ring = ring.observe(uid, version, keys(*names))
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
    assert ring.observe(late[0], min(version, len(history)), keys(*late[1])) is ring


def test_another_object_of_that_name_takes_nothing_away_until_its_own_entry_is_removed() -> None:
    """Deleted, and written again by a server that has one key: the former ones count, and can be revoked there."""
    ring = KeyRing().observe("u1", 1, keys("old", "new")).observe("u2", 2, keys("new"))
    assert set(ring.public) == {"old", "new"}
    assert ring.public.keys() - ring.shown == {"old"}
    ring = ring.observe("u2", 3, keys("new", "old")).observe("u2", 4, keys("new"))
    assert set(ring.public) == {"new"}
    assert ring.revoked == {"old"}
    assert ring.observe("u3", 5, keys("old")).revoked == frozenset()


@given(st.lists(VERSIONS, min_size=1, max_size=6), st.lists(VERSIONS, min_size=1, max_size=6), st.integers(0, 5))
def test_after_etcd_was_restored_a_read_counts_and_takes_nothing_away(
    history: list[tuple[str, frozenset[str]]], later: list[tuple[str, frozenset[str]]], back: int
) -> None:
    """The versions of the new history count on from one of the old, and what is written then is followed again."""
    ring = after(history)
    restored = min(back, len(history) - 1)
    (uid, names), *others = later
    ring = ring.observe(uid, restored, keys(*names), begun=ring.version)
    before = after(history)
    assert set(ring.public) == set(before.public) | names
    assert ring.revoked == before.revoked - names
    assert (ring.version, ring.shown) == (restored, names)
    for version, (each, shown) in enumerate(others, restored + 1):
        former, ring = ring, ring.observe(each, version, keys(*shown))
        taken_out = former.shown - shown if each == former.uid else frozenset[str]()
        assert set(ring.public) == (set(former.public) | shown) - taken_out
        assert taken_out <= ring.revoked


@given(st.lists(VERSIONS, min_size=2, max_size=6), st.integers(0, 5), st.integers(0, 5))
def test_a_read_that_ends_after_something_newer_was_seen_says_nothing(
    history: list[tuple[str, frozenset[str]]], begun: int, version: int
) -> None:
    """Without a restored etcd: a read shows what is no older than all that was seen when it began."""
    begun = min(begun, len(history) - 1)
    version = max(begun, min(version, len(history) - 1))
    uid, names = history[version - 1] if version else ("u1", frozenset[str]())
    ring = after(history)
    assert ring.observe(uid, version, keys(*names), begun=begun) is ring
