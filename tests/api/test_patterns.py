"""Regular expressions as Go has them, and names made of what they capture."""

import time

import pytest

from tessera.api.patterns import Pattern, PatternSet
from tessera.errors import InvalidInput

EXPANDED = {
    "the published example": ("^(.*)_total$", "${1}_per_second", "http_requests_total", "http_requests_per_second"),
    "the whole": (".*", "$0", "up", "up"),
    "only a part of the text": ("^(.*)_total", "$1", "a_total_b", "a"),
    "a name takes all letters, digits and _": ("^(.*)_total$", "$1_x", "a_total", ""),
    "a group of a name": ("^(?P<what>.*)_total$", "x_${what}", "a_total", "x_a"),
    "a group by a plain name": ("^(?P<what>.*)_total$", "$what", "a_total", "a"),
    "a group that captured nothing": ("(a)|(b)|(?P<c>c)", "<$1$2$c>", "b", "<b>"),
    "a group that is not there": ("(a)", "<$2${3}$x>", "a", "<>"),
    "a number that is no group's": ("(a)", "<$01${99999999999999999999}>", "a", "<>"),
    "dollars": ("a", "$$1 $ ${ ${-}", "a", "$1 $ ${ ${-}"),
    "no match": ("^b", "$0", "a", None),
}


@pytest.mark.parametrize("case", EXPANDED)
def test_expanded(case: str) -> None:
    pattern, template, text, want = EXPANDED[case]
    assert Pattern(pattern).expanded(text, template) == want
    assert Pattern(pattern).matches(text) == (want is not None)


def test_a_group() -> None:
    pattern = Pattern("^kube_(?P<group>x)?(?P<resource>.+?)$")
    assert (pattern.group("kube_pod", "resource"), pattern.group("kube_pod", "group")) == ("pod", "")
    assert (pattern.group("pod", "resource"), pattern.group("kube_pod", "other")) == (None, "")


REFUSED = {
    "an open parenthesis": ("(", "'(' (missing ): () is not a regular expression of RE2"),
    "what RE2 does not have": ("(?=a)", "invalid perl operator"),
    "more repetition than memory": ("((a{100}){100}){100}", "invalid repetition size"),
    "a length without end": ("a" * 5000, "5000 characters are more than 4096"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_none_is_refused_with_its_reason(case: str) -> None:
    pattern, want = REFUSED[case]
    with pytest.raises(InvalidInput) as error:
        Pattern(pattern)
    assert want in str(error.value)


def test_no_expression_takes_longer_than_the_text_is_long() -> None:
    """Two hundred thousand characters, where one that goes back needs two to the power of as many steps."""
    begun_s = time.process_time()
    assert not Pattern("^(a+)+$").matches("a" * 200_000 + "b")
    assert time.process_time() - begun_s < 5


def test_a_set_says_which_of_its_patterns_are_found() -> None:
    found = PatternSet([b"^a", b"b$", b"A.", b"\xff"])
    assert found.matches(b"ab") == (0, 1)
    assert found.matches(b"A\n\xff") == (2, 3)
    assert found.matches(b"") == ()
    assert PatternSet([b"^a"], any_case=True).matches(b"A") == (0,)
    assert PatternSet([]).matches(b"a") == ()
    assert PatternSet([b"x%d.*y" % each for each in range(5_000)]).matches(b"x7..y") == (7,)
    with pytest.raises(InvalidInput, match="is not a regular expression of RE2"):
        PatternSet([b"a", b"["])
