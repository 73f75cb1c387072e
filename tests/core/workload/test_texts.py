"""Names in a sentence."""

from tessera.core.workload.texts import first_of, more


def test_the_first_names_are_named_and_the_others_counted() -> None:
    names = ("a", "b", "c", "d")
    assert first_of(names, most=4) == "a, b, c, d"
    assert first_of(names) == "a, b, c and 1 more"
    assert [first_of(names, "node", most=most) for most in (3, 2)] == [
        "a, b, c and 1 more node",
        "a, b and 2 more nodes",
    ]
    assert first_of(()) == ""


def test_a_noun_is_counted() -> None:
    assert [more(1), more(2), more(1, "node"), more(2, "node")] == ["1 more", "2 more", "1 more node", "2 more nodes"]
