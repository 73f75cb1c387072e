"""A set that forgets is a set of the latest."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.server.recent import Recent


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 5))
def test_the_latest_that_were_added_are_in_it_and_no_others(added: list[int], most: int) -> None:
    recent = Recent[int](most)
    for each in added:
        recent.add(each)
    latest = list(dict.fromkeys(reversed(added)))[:most]
    assert {each for each in range(7) if each in recent} == set(latest)
