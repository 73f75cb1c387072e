"""What a user reads of a damaged revision."""

from tessera.core.storage.models.verifications import Verification


def test_damage_names_the_first_file() -> None:
    assert Verification().damage == Verification(5.0).damage == ""
    assert Verification(5.0, ("a",)).damage == "1 file differs from what was fetched (a)"
    assert Verification(5.0, ("a", "b")).damage == "2 files differ from what was fetched (a, ...)"
