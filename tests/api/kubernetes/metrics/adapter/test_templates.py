"""Go templates between << and >>: what is printed, and what is refused."""

from collections.abc import Mapping
from typing import Final

import pytest

from tessera.api.kubernetes.metrics.adapter.templates import Form, Given, read_template
from tessera.errors import InvalidInput

FORMS: Final[Mapping[str, Form]] = {"Series": "text", "Values": "map", "Slice": "list"}
FIELDS: Final[Mapping[str, Given]] = {"Series": "up", "Values": {"pod": "a|b", "ns": "x"}, "Slice": ("pod", "ns")}
# What is printed was tried with Go's text/template.
PRINTED = {
    "no action": ("sum(up)", "sum(up)"),
    "a field": ("sum(<<.Series>>{})", "sum(up{})"),
    "with space around it": ("<< .Series  >>", "up"),
    "on several lines": ("<<\n.Series\n>>", "up"),
    "trimmed": ("a  <<- .Series ->>  b", "aupb"),
    "trimmed on one side": ("a  <<- .Series>>  b", "aup  b"),
    "trimmed between two": ("<<.Series ->> \n <<- .Series>>", "upup"),
    "a comment": ("a<</* .Series */>>b", "ab"),
    "a trimmed comment": ("a <<- /* x */ ->> b", "ab"),
    "a map": ("<<.Values>>", "map[ns:x pod:a|b]"),
    "a list": ("<<.Slice>>", "[pod ns]"),
    "a key": ('<<index .Values "pod">>', "a|b"),
    "a key in other quotes": ("<<index .Values `pod`>>", "a|b"),
    "a key that is not there": ('<<index .Values "x">>', ""),
    "a quoted key": (r'<<index .Values "a\"\\">>', ""),
    "a key as a field": ("<<.Values.pod>>", "a|b"),
    "a key as a field that is not there": ("<<.Values.x>>", "<no value>"),
    "an element": ("<<index .Slice 1>>", "ns"),
}


@pytest.mark.parametrize("case", PRINTED)
def test_printed(case: str) -> None:
    text, want = PRINTED[case]
    assert read_template(text, FORMS).filled(FIELDS) == want


def test_the_fields_that_it_prints() -> None:
    assert read_template("<<.Series>> <<index .Slice 0>>", FORMS).fields() == {"Series", "Slice"}


REFUSED = {
    "an unknown field": (
        "<<.Sries>>",
        "'<<.Sries>>' is not one that is read: use <<.Series>>, <<.Values>>, <<.Slice>>",
    ),
    "an unknown map": ('<<index .X "a">>', "is not one that is read"),
    "a statement": ("<<if .Series>>x<<end>>", "'<<if .Series>>' is not one that is read"),
    "a pipe": ('<<.Series | printf "%s">>', "is not one that is read"),
    "nothing": ("<<>>", "'<<>>' is not one that is read"),
    "no end": ("sum(<<.Series", "'<<.Series' has no end: write >> after it"),
    "a key of a text": ('<<index .Series "a">>', "does not work, because .Series is a text"),
    "a field of a text": ("<<.Series.a>>", "does not work, because .Series is a text"),
    "a number of a map": ("<<index .Values 1>>", "does not work, because .Values is a map"),
    "a name of a list": ('<<index .Slice "a">>', "does not work, because .Slice is a list"),
    "a length without end": ("a" * 70_000, "70000 characters are more than 65536"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    text, want = REFUSED[case]
    with pytest.raises(InvalidInput) as error:
        read_template(text, FORMS)
    assert want in str(error.value)


def test_an_element_that_a_list_does_not_have() -> None:
    with pytest.raises(InvalidInput, match=r"index .Slice 2: there are 2 elements: count from 0"):
        read_template("<<index .Slice 2>>", FORMS).filled(FIELDS)
