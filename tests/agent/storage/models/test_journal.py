"""The journal of a transfer, also after a crash in the middle of a line."""

from pathlib import Path

from tessera.agent.storage.models.journal import Journal

ONE, TWO = "1" * 64, "2" * 64


def test_an_attempt_knows_what_those_before_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Journal(path)
    first.open()
    assert first.known == {}
    first.add((0, 0, ONE))
    first.add((1, 3, TWO))
    first.close()
    with path.open("ab") as file:
        file.write(b"1 4 22")  # torn by a crash
    second = Journal(path)
    second.open()
    second.add((2, 0, ONE))
    second.close()
    second.close()
    assert second.known == {(0, 0): ONE, (1, 3): TWO}
    second.open()
    assert second.known == {(0, 0): ONE, (1, 3): TWO, (2, 0): ONE}
    second.close()


def test_objects_that_are_wrong_are_forgotten(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.open()
    for index, chunk in ((0, 0), (1, 0), (0, 1), (2, 0)):
        journal.add((index, chunk, ONE))
    journal.forget({0, 2})
    journal.close()
    journal.open()
    assert journal.known == {(1, 0): ONE}
    journal.close()
