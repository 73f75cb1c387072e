"""Label matchers that choose one cluster's series in a Prometheus that has those of several.

Source: prometheus.io, "Querying basics", time series selectors.
"""

import re
from typing import Final

from tessera.errors import InvalidInput, shown

__all__ = ["read_matchers", "selected"]

_MATCHER: Final = re.compile(
    r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\[^\n])*"|[A-Za-z0-9_.:/-]+)\s*'
)
_MOST_CHARACTERS: Final = 1000


def read_matchers(text: str, subject: str) -> str:
    """Return label matchers as PromQL writes them between braces: `cluster="a", region=~"eu-.*"`.

    Args:
        text: matchers separated by commas, with or without braces; a simple value also without quotes, which a shell
            takes away: `cluster=a`. Empty for none.
        subject: what has them, for errors.

    Raises:
        InvalidInput: it is nothing of that.

    """
    inner = text.strip()
    inner = inner[1:-1] if inner.startswith("{") and inner.endswith("}") else inner
    place, found = 0, list[str]()
    while place < len(inner) <= _MOST_CHARACTERS:
        matcher = _MATCHER.match(inner, place)
        if matcher is None or inner[matcher.end() : matcher.end() + 1] not in {"", ","}:
            break
        label, operator, value = matcher.groups()
        found.append(f"{label}{operator}{value}" if value.startswith('"') else f'{label}{operator}"{value}"')
        place = matcher.end() + 1
    if place < len(inner):
        raise InvalidInput(subject, found=shown(text), expected="label matchers of PromQL", hint='cluster="a"')
    return ", ".join(found)


def selected(metric: str, *matchers: str) -> str:
    """Return the selector of a metric's series: all of these matchers, of which some may be empty, hold of them."""
    chosen = ", ".join(filter(None, matchers))
    return f"{metric}{{{chosen}}}" if chosen else metric
