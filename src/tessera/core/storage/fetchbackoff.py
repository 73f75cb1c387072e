"""How long after failures in a row something that a node fetches is not tried again."""

__all__ = ["fetch_backoff_s"]

_FIRST_S, _LONGEST_S = 10.0, 600.0


def fetch_backoff_s(failures: int) -> float:
    """Return the back-off after so many failures in a row, at least one."""
    return min(_FIRST_S * 2.0 ** min(failures - 1, 16), _LONGEST_S)
