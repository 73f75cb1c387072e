"""The check of words finds a banned one in each kind of name."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "scripts" / "words.py"


@pytest.mark.parametrize(
    "line",
    ["held_shares = 1", "def held(): ...", "def f(held_by): ...", "class HeldShares: ...", "x.heldShares", "_HELD = 1"],
)
def test_a_banned_word_is_found_in_every_kind_of_name(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("words", PATH)
    assert spec is not None
    assert spec.loader is not None
    words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    monkeypatch.chdir(tmp_path)
    module = Path("src", "module.py")
    module.parent.mkdir()
    module.write_text(f"{line}\nupheld = household = 1\n")
    assert {(number, word) for number, word, _ in words.names_in(module)} == {(1, "held")}
