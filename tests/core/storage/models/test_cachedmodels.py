"""Which revision of a model new pods get, and why they get none."""

from itertools import product

from builders.cachedmodels import model
from tessera.core.storage.models.cachedmodels import (
    Fetching,
    ModelOnDisk,
    offered_revision,
    unreadable_reason,
    withheld_reason,
)
from tessera.core.storage.models.fetchhistory import fetch_history
from tessera.core.storage.models.verifications import Verification


def test_new_pods_get_the_named_or_current_revision_that_is_whole_and_as_verified_as_required() -> None:
    """All cases of two revisions, each there or not, damaged or not, and unverified or not."""
    for named, current, there in product(("", "1", "2"), ("", "1", "2"), ((), ("1",), ("1", "2"))):
        for damaged, unverified, is_required in product(("", "1", "2"), ("", "1", "2"), (False, True)):
            if current not in ("", *there):
                continue
            on_disk = ModelOnDisk(
                current, there, dict.fromkeys(damaged, Verification(1.0, ("a",))), unverified=frozenset(unverified)
            )
            desired = model("a", revision=named, verification="Required" if is_required else "IfGiven")
            want = named or current
            is_offered = want in there and want != damaged and not (is_required and want == unverified)
            assert offered_revision(desired, on_disk) == (want if is_offered else "")
            is_withheld = bool(want) and (want == damaged or (is_required and want == unverified))
            assert bool(withheld_reason(desired, on_disk)) == is_withheld


def test_what_cannot_be_read_is_a_reason_only_of_the_revision_that_new_pods_would_get() -> None:
    on_disk = ModelOnDisk("", (), unreadable={"1": "EIO", "2": "ENOMEM"}, unreadable_current="1")
    found = [unreadable_reason(model("a", revision=each), on_disk) for each in ("", "1", "2", "3")]
    assert found == ["EIO", "EIO", "ENOMEM", ""]


def test_a_model_needs_room_until_that_is_decided_and_not_while_the_disk_keeps_it_from_being_fetched() -> None:
    needed = fetch_history("a").lacked_room(9, 1)
    known = {"a": needed, "b": needed, "c": needed.room_made()}
    assert Fetching(histories=known, failing=frozenset("b")).needs == {"a": 9}
    assert Fetching(histories=known).history("d") == fetch_history("d")
