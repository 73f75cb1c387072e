"""Label matchers as users and shells write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.prometheus.matchers import read_matchers, selected
from tessera.errors import InvalidInput

READ = {
    "none": ("", ""),
    "blank": ("  ", ""),
    "one": ('cluster="a"', 'cluster="a"'),
    "a shell took the quotes": ("cluster=eu-1", 'cluster="eu-1"'),
    "in braces": ('{cluster="a"}', 'cluster="a"'),
    "braces in a value": ('cluster="{a}"', 'cluster="{a}"'),
    "several": (
        'cluster="a" , region=~"eu-.*",env!=dev,zone!~"b|c"',
        'cluster="a", region=~"eu-.*", env!="dev", zone!~"b|c"',
    ),
    "a comma at the end": ('cluster="a",', 'cluster="a"'),
    "escaped": (r'cluster="a\"} or x{y=\"b"', r'cluster="a\"} or x{y=\"b"'),
}
REFUSED = (
    "cluster", "cluster=", 'cluster="a', 'cluster="a" or b', 'cluster="a"} or x{y="b"', "a=b}", "{a=b", "1a=b", "a==b",
    ",", 'a="b",,c="d"', "a=b c=d", 'a="b\nc"', "a=é", "a=b," * 400,
)  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_matchers_are_read(case: str) -> None:
    text, want = READ[case]
    assert read_matchers(text, "--selector") == want
    assert read_matchers(want, "--selector") == want


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_list_of_matchers_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--selector: .*label matchers of PromQL"):
        read_matchers(text, "--selector")


@given(st.text(st.sampled_from('ab="\\{}, ~!1'), max_size=20))
def test_nothing_that_is_read_ends_the_selector(text: str) -> None:
    try:
        found = read_matchers(text, "--selector")
    except InvalidInput:
        return
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", found)
    assert not set('{}"') & set(outside)


def test_a_selector_has_the_matchers_that_there_are() -> None:
    assert selected("up") == selected("up", "", "") == "up"
    assert selected("up", "", 'a="b"', 'c="d"') == 'up{a="b", c="d"}'
