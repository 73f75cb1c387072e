"""Which revisions stay, and which go for room."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.retention import Kept, make_room, superseded
from tessera.errors import Unavailable

REVISIONS = st.lists(
    st.builds(Kept, st.uuids().map(str), st.floats(0, 9), st.integers(0, 99), st.sampled_from(["", "pinned"])),
    unique_by=lambda each: each.revision,
)


@given(REVISIONS, st.integers(1, 4))
def test_retention_keeps_what_is_protected_and_the_most_recent(kept: list[Kept], keep: int) -> None:
    gone = superseded(kept, keep)
    by_name = {each.revision: each for each in kept}
    assert not any(by_name[name].protected for name in gone)
    stay = [each for each in kept if each.revision not in gone]
    assert len(stay) == max(min(keep, len(kept)), len([each for each in kept if each.protected]))
    newest = [each.last_used for each in stay if not each.protected]
    assert all(by_name[name].last_used <= time for name in gone for time in newest)


@given(REVISIONS, st.integers(0, 300), st.integers(0, 200), st.integers(0, 50))
def test_room_is_made_or_nothing_goes(kept: list[Kept], needed: int, free: int, reserve: int) -> None:
    possible = free + sum(each.freed_bytes for each in kept if not each.protected) >= needed + reserve
    by_name = {each.revision: each for each in kept}
    try:
        gone = make_room(kept, needed_bytes=needed, free_bytes=free, reserve_bytes=reserve, subject="/m")
    except Unavailable:
        assert not possible
        return
    assert possible
    freed = [by_name[name].freed_bytes for name in gone]
    assert not any(by_name[name].protected for name in gone)
    assert free + sum(freed) >= needed + reserve
    assert not gone or free + sum(freed[:-1]) < needed + reserve
