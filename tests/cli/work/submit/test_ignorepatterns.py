"""What a line of a `.gitignore` names; tests of codefolder compare with git itself."""

import pytest

from tessera.api.patterns import PatternSet
from tessera.cli.work.submit.ignorepatterns import expression

NAMED = {
    "data[!_]*": (b"data1 datax/ a/data1", b"data/ data_x"),
    "[a-c]x": (b"ax cx", b"dx -x"),
    "[c-a]x": (b"cx", b"ax bx"),
    "[]-a]": (b"] ^ a", b"b -"),
    "[!]]": (b"a [", b"]"),
    "[a-]": (b"a -", b"b"),
    "[[:digit:]x]": (b"1 x", b"d : ["),
    "[[:x]": (b"[ : x", b"y"),
    "[\\]\\-]": (b"] -", b"\\"),
    "[a/b]c": (b"ac bc", b"d/ac /c"),
    "!\u00e9[x]": (b"\xc3\xa9x", b"x"),
}


@pytest.mark.parametrize("line", NAMED)
def test_a_bracket_expression_names_bytes_other_than_slashes(line: str) -> None:
    named, others = NAMED[line]
    found = expression(line)
    assert found is not None
    assert found[1] == (not line.startswith("!"))
    patterns = PatternSet([found[0]])
    assert [each for each in named.split() if not patterns.matches(each)] == []
    assert [each for each in others.split() if patterns.matches(each)] == []


@pytest.mark.parametrize("line", ["", "# a", "!", "!/", "/", "[a", "[a\\]", "[[:nothing:]a]", "[[::]]"])
def test_what_names_nothing_has_no_expression(line: str) -> None:
    assert expression(line) is None


def test_a_backslash_at_the_end_is_no_pattern() -> None:
    with pytest.raises(ValueError, match="pattern"):
        expression("a\\")
