"""Parts of objects of unknown content."""

import pytest

from tessera.api.untyped import as_dict, as_dicts, as_list


@pytest.mark.parametrize("value", [None, "text", 3, True])
def test_other_types_are_empty(value: object) -> None:
    assert (as_dict(value), as_list(value), as_dicts(value)) == ({}, [], [])


def test_what_has_the_type_is_returned() -> None:
    assert as_dict({"a": 1}) == {"a": 1}
    assert as_list(["a", {"b": 1}]) == ["a", {"b": 1}]
    assert as_dicts(["a", {"b": 1}, None]) == [{"b": 1}]
    assert as_list({"a": 1}) == []
    assert as_dict([{"a": 1}]) == {}
