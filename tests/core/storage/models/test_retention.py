"""Which revisions stay, and which go for room."""

import math
from collections import Counter
from collections.abc import Collection

from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.storage.models.retention import LinkedFile, RevisionOnDisk, freed_bytes, make_room, superseded
from tessera.errors import Unavailable

REVISIONS = st.lists(
    st.builds(
        RevisionOnDisk, st.uuids().map(str), st.floats(0, 9), st.integers(0, 99), st.sampled_from(["", "pinned"])
    ),
    unique_by=lambda each: each.revision,
)

FILES = st.lists(st.integers(1, 40), min_size=1, max_size=4)
"""Sizes of the files of a disk."""
NAMES = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=5)
"""The files that each revision has names of, a file perhaps under several."""


class Disk:
    """Revisions whose names are hard links to files, as a file system keeps them; `elsewhere` has names of some."""

    def __init__(self, sizes: list[int], names: list[list[int]], protected: Collection[int], elsewhere: int) -> None:
        self.sizes = sizes
        self.names = [[file % len(sizes) for file in each] for each in names]
        self.elsewhere = [elsewhere % len(sizes)] if elsewhere >= 0 else []
        links = Counter(file for each in (*self.names, self.elsewhere) for file in each)
        self.kept = [
            RevisionOnDisk(
                str(number),
                float(9 - number),  # by use they are in another order than by name
                sum(sizes[file] for file in each if links[file] == 1),
                "pinned" if number in protected else "",
                tuple(LinkedFile((0, file), sizes[file], links[file]) for file in each if links[file] > 1),
            )
            for number, each in enumerate(self.names)
        ]

    def freed(self, removed: Collection[str]) -> int:
        """Remove revisions and count what has no name any more."""
        rest = [each for number, each in enumerate(self.names) if str(number) not in removed]
        there = {file for each in (*rest, self.elsewhere) for file in each}
        before = {file for each in (*self.names, self.elsewhere) for file in each}
        return sum(self.sizes[file] for file in before - there)


DISKS = st.builds(Disk, FILES, NAMES, st.frozensets(st.integers(0, 4)), st.integers(-1, 3))
TWO_OF_THE_SAME = Disk([8, 1, 1], [[0, 1], [0, 2]], (), -1)
THREE_OF_THEIR_OWN = Disk([5, 5, 5], [[0], [1], [2]], (), -1)


@given(REVISIONS, st.integers(1, 4))
def test_retention_keeps_what_is_protected_and_the_most_recent(kept: list[RevisionOnDisk], keep: int) -> None:
    gone = superseded(kept, keep)
    by_name = {each.revision: each for each in kept}
    assert not any(by_name[name].protected for name in gone)
    stay = [each for each in kept if each.revision not in gone]
    assert len(stay) == max(min(keep, len(kept)), len([each for each in kept if each.protected]))
    newest = [each.last_used for each in stay if not each.protected]
    assert all(by_name[name].last_used <= time for name in gone for time in newest)


@given(DISKS, st.sets(st.integers(0, 4)))
@example(TWO_OF_THE_SAME, {0, 1})
def test_a_file_that_revisions_share_is_freed_with_its_last_name(disk: Disk, removed: set[int]) -> None:
    chosen = [each for each in disk.kept if int(each.revision) in removed]
    assert freed_bytes(chosen) == disk.freed([each.revision for each in chosen])


@given(DISKS, st.integers(0, 150), st.integers(0, 100), st.integers(0, 30))
@example(TWO_OF_THE_SAME, 8, 0, 0)
@example(THREE_OF_THEIR_OWN, 3, 0, 0)
def test_room_is_made_or_nothing_goes(disk: Disk, needed: int, free: int, reserve: int) -> None:
    evictable = [each.revision for each in reversed(disk.kept) if not each.protected]
    missing = needed + reserve - free
    shortest = next(
        (count for count in range(len(evictable) + 1) if disk.freed(evictable[:count]) >= missing), math.inf
    )
    try:
        gone = make_room(disk.kept, needed_bytes=needed, free_bytes=free, reserve_bytes=reserve, subject="/m")
    except Unavailable:
        assert shortest == math.inf
        return
    assert disk.freed(gone) >= missing, "enough goes"
    assert set(gone) <= set(evictable[: int(shortest)]), "the least recently used ones"
    for each in gone:
        assert disk.freed([other for other in gone if other != each]) < missing, "and none without need"
