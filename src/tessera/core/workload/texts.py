"""Names in a sentence: the first of many, and how many more there are."""

from collections.abc import Sequence

__all__ = ["first_of", "more"]


def first_of(names: Sequence[str], noun: str = "", *, most: int = 3) -> str:
    """Return names for a sentence: `a, b and 2 more`, or `a, b and 2 more nodes` with a noun.

    Args:
        names: in order.
        noun: what the names are of, where the sentence does not say it.
        most: how many are named.

    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {more(rest, noun)}" if rest > 0 else "")


def more(count: int, noun: str = "") -> str:
    """Return how many more there are: `2 more`, or `1 more node` with a noun."""
    return f"{count} more" + (noun and f" {noun}{'' if count == 1 else 's'}")
