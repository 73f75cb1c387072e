"""Label selectors as text, as the API server reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.kubernetes.labelselectors import read_selector, selects
from tessera.errors import InvalidInput

LABELS = {"app": "a", "tier": "x", "example.com/size": "5", "empty": ""}
CASES = {
    "": True,
    "  ": True,
    "app": True,
    "other": False,
    "!other": True,
    "! app": False,
    "app=a": True,
    "app==a": True,
    " app = a , tier != y ": True,
    "app=b": False,
    "app!=a": False,
    "other!=a": True,
    "tier in (x,y)": True,
    "tier in ( y )": False,
    "tier notin (y,z),app": True,
    "tier notin (x)": False,
    "example.com/size>4": True,
    "example.com/size<4": False,
    "empty=": True,
    "app=": False,
    "empty in ()": True,
    "in": False,
    "app=a,in!=b": True,
}


@pytest.mark.parametrize("text", CASES)
def test_what_is_selected(text: str) -> None:
    assert selects(read_selector(text, "labelSelector"), LABELS) is CASES[text]


BAD = (
    ",",
    "app,",
    ",app",
    "app=a,",
    "app=a b",
    "=a",
    "a in",
    "a in x",
    "a in (x",
    "a in (x y)",
    "app=ä",
    "a==b=c",
    "(a)",
    "!",
    "a" * 5000,
)


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_selector(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^labelSelector: "):
        read_selector(text, "labelSelector")


@given(st.text(alphabet="ab!=,() in\nnot<>é.-/", max_size=30))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        found = read_selector(text, "labelSelector")
    except InvalidInput:
        return
    assert selects(found, LABELS) in {True, False}
