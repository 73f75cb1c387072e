"""Which node owns which chunk, from which peer a node requests it, and when a peer is banned."""

import hashlib
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.peers.owners import (
    ContentChunks,
    Owners,
    PeerPatience,
    Peers,
    asking_order,
    content_key,
    recheck_order,
)

ADDRESSES = [f"10.0.{net}.{host}:9443" for net in range(4) for host in range(16)]
MEMBERS = st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=24, unique=True)
KEYS = st.integers(0, 10**6).map(lambda number: content_key(f"md5:{number:032x}", 1))
CHUNKS = st.integers(1, 60)


@given(KEYS, CHUNKS, MEMBERS)
def test_every_chunk_has_one_owner_who_stands_first_in_a_row_of_all(key: str, chunks: int, members: list[str]) -> None:
    owners = Owners(ContentChunks({key: chunks}), members)
    for chunk in range(chunks):
        row = owners.candidates(key, chunk)
        assert row[0] == owners.owner(key, chunk)
        assert sorted(row) == sorted(members)


@given(KEYS, CHUNKS, MEMBERS, st.data())
def test_all_who_know_the_same_members_know_the_same_owners(
    key: str, chunks: int, members: list[str], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations([*members, members[0]]))
    one, other = Owners(ContentChunks({key: chunks}), members), Owners(ContentChunks({key: chunks}), shuffled)
    assert [one.candidates(key, chunk) for chunk in range(chunks)] == [
        other.candidates(key, chunk) for chunk in range(chunks)
    ]


@given(st.dictionaries(KEYS, st.integers(1, 20), min_size=1, max_size=20), MEMBERS)
def test_nobody_owns_more_than_a_tenth_above_its_share_of_all(contents: dict[str, int], members: list[str]) -> None:
    owners = Owners(ContentChunks(contents), members)
    owned = Counter(owners.owner(key, chunk) for key, chunks in contents.items() for chunk in range(chunks))
    assert owned.total() == sum(contents.values())
    assert max(owned.values()) <= 1 + owned.total() * 1.1 / len(members)


@given(KEYS, CHUNKS, MEMBERS, st.data())
def test_a_peer_that_leaves_moves_its_own_chunks_alone(
    key: str, chunks: int, members: list[str], data: st.DataObject
) -> None:
    owners, gone = Owners(ContentChunks({key: chunks}), members), data.draw(st.sampled_from(members))
    peers = Peers("me")
    before = [peers.peer_for(owners, key, chunk, 0.0) for chunk in range(chunks)]
    peers.mark_failed(gone, 0.0)
    after = [peers.peer_for(owners, key, chunk, 0.0) for chunk in range(chunks)]
    assert before == [owners.owner(key, chunk) for chunk in range(chunks)]
    assert gone not in after
    assert all(then == now for then, now in zip(before, after, strict=True) if then != gone)


def seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def mixed(word: int) -> int:
    """Splitmix64."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def score(key: str, chunk: int, member: str) -> int:
    return mixed(mixed((seed(key) + chunk * 0x9E3779B97F4A7C15) % 2**64) ^ seed(member))


@given(st.dictionaries(KEYS, st.integers(1, 20), max_size=20), MEMBERS, MEMBERS)
def test_a_chunk_goes_to_its_best_member_that_does_not_own_its_share_already(
    contents: dict[str, int], members: list[str], others: list[str]
) -> None:
    """By the definition, one chunk at a time; other members change nothing about the owners among these."""
    owners = Owners(ContentChunks(contents), members)
    chunks = [(key, chunk) for key in sorted(contents) for chunk in range(contents[key])]
    for computed, known in ((Owners(owners.chunks, others), others), (owners, members)):
        most = -(-len(chunks) * 110 // (100 * len(known)))
        owned: Counter[str] = Counter()
        for key, chunk in chunks:
            best = sorted(known, key=lambda each: score(key, chunk, each), reverse=True)
            want = next(each for each in best if owned[each] < most)
            owned[want] += 1
            assert computed.owner(key, chunk) == want


def test_who_does_not_know_a_member_yet_differs_in_little_else() -> None:
    key, chunks, moved, others = content_key("md5:" + "0" * 32, 1), 640, 0, 0
    for count in range(4, 64, 4):
        known = ADDRESSES[:count]
        mine, theirs = Owners(ContentChunks({key: chunks}), known), Owners(ContentChunks({key: chunks}), known[:-1])
        stays = [chunk for chunk in range(chunks) if mine.owner(key, chunk) != known[-1]]
        others += len(stays)
        moved += sum(mine.owner(key, chunk) != theirs.owner(key, chunk) for chunk in stays)
    assert moved / others < 0.03


@given(KEYS, CHUNKS, MEMBERS, st.data())
def test_where_it_is_the_nodes_turn_it_reads_the_store(
    key: str, chunks: int, members: list[str], data: st.DataObject
) -> None:
    owners, me = Owners(ContentChunks({key: chunks}), members), data.draw(st.sampled_from(members))
    peers = Peers(me)
    for chunk in range(chunks):
        asked = peers.peer_for(owners, key, chunk, 0.0)
        assert asked == ("" if owners.owner(key, chunk) == me else owners.owner(key, chunk))


@given(KEYS, CHUNKS, MEMBERS)
def test_nothing_is_requested_of_a_banned_peer_and_where_all_are_banned_the_store_is_read(
    key: str, chunks: int, members: list[str]
) -> None:
    owners, peers = Owners(ContentChunks({key: chunks}), members), Peers("me")
    for count, bad_peer in enumerate(members):
        assert peers.ban(bad_peer, f"chunk 1 of {key}")
        assert not peers.ban(bad_peer, "chunk 2")
        assert {peers.peer_for(owners, key, chunk, 1e9) for chunk in range(chunks)}.isdisjoint(members[: count + 1])
    assert {peers.peer_for(owners, key, chunk, 1e9) for chunk in range(chunks)} == {""}
    assert set(peers.banned) == set(members)


@given(KEYS, MEMBERS)
def test_after_three_the_store_is_read(key: str, members: list[str]) -> None:
    owners, peers = Owners(ContentChunks({key: 1}), members), Peers("me")
    tried: list[str] = []
    while peer := peers.peer_for(owners, key, 0, 0.0, tried):
        assert peer not in tried
        tried.append(peer)
    assert tried == list(owners.candidates(key, 0)[:3])


def test_a_peer_that_failed_comes_back_each_time_later_and_one_that_served_something_sooner() -> None:
    patience = PeerPatience(first_away_s=2.0, longest_away_s=5.0)
    peers, owners, key = Peers("me", patience), Owners(ContentChunks({"key": 1, "other": 1}), ["a"]), "key"
    peers.mark_failed("a", 10.0)
    assert [peers.peer_for(owners, key, 0, now) for now in (11.9, 12.0)] == ["", "a"]
    peers.mark_failed("a", 12.0)
    assert [peers.peer_for(owners, key, 0, now) for now in (15.9, 16.0)] == ["", "a"]
    peers.mark_failed("a", 16.0)
    assert [peers.peer_for(owners, key, 0, now) for now in (20.9, 21.0)] == ["", "a"]
    peers.mark_served("a")
    peers.mark_failed("a", 21.0)
    assert peers.peer_for(owners, key, 0, 23.0) == "a"


def test_a_peer_that_has_nothing_of_an_object_serves_others() -> None:
    peers, owners = Peers("me", PeerPatience(absent_s=5.0)), Owners(ContentChunks({"key": 1, "other": 1}), ["a"])
    peers.mark_absent("a", "key", 0.0)
    assert peers.peer_for(owners, "key", 0, 4.9) == ""
    assert peers.peer_for(owners, "key", 0, 5.0) == "a"
    assert peers.peer_for(owners, "other", 0, 0.0) == "a"


def test_content_has_a_key_where_its_checksum_is_a_digest_of_all_of_it() -> None:
    md5 = "md5:" + "a" * 32
    assert content_key(md5, 5) != content_key(md5, 6)
    assert content_key(md5, 5) != content_key("md5:" + "b" * 32, 5)
    assert [content_key(each, 5) for each in ("", "md5:", "crc32c:e3069283", "etag:x-4")] == [""] * 4
    assert all(content_key(f"{kind}:{'a' * 40}", 5) for kind in ("md5", "sha1", "sha256", "git"))


@given(st.dictionaries(st.integers(0, 99), st.sampled_from("abcd")))
def test_a_recheck_begins_with_one_chunk_of_each_peer(origins: dict[int, str]) -> None:
    order = recheck_order(origins)
    assert sorted(order) == sorted(origins)
    count = len(set(origins.values()))
    assert {origins[chunk] for chunk in order[:count]} == set(origins.values())


@given(CHUNKS, st.sampled_from(ADDRESSES), st.integers(1, 20))
def test_chunks_are_requested_early_ones_first_and_each_once(count: int, me: str, members: int) -> None:
    order = asking_order(count, me, members)
    assert sorted(order) == list(range(count))
    assert all(abs(place - chunk) < 2 * members for place, chunk in enumerate(order))


def test_a_peer_that_may_have_a_chunk_comes_before_the_store_unless_it_lacks_it() -> None:
    peers, owners = Peers("a", PeerPatience(absent_s=5.0)), Owners(ContentChunks({"key": 1, "other": 1}), ["a", "b"])
    alone = Owners(ContentChunks({"key": 1, "other": 1}), ["a"])
    assert peers.holder(alone, "key", 0, 0.0) == ""
    assert peers.holder(owners, "key", 0, 0.0) == "b"
    peers.mark_unverified("b", "key", 0.0)
    assert [peers.holder(owners, "key", 0, now) for now in (4.9, 5.0)] == ["", "b"]
    assert peers.holder(owners, "other", 0, 0.0) == "b"
    peers.mark_unverified("b", "key", 0.0)
    peers.mark_absent("b", "other", 0.0)
    peers.begin()
    assert [peers.holder(owners, key, 0, 0.0) for key in ("key", "other")] == ["b", "b"]
    peers.ban("b", "chunk 0")
    assert peers.holder(owners, "key", 0, 9.0) == ""
