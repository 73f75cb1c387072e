"""Times as Kubernetes writes them: RFC 3339."""

import datetime as dt

__all__ = ["read_time", "time_text"]


def read_time(text: str) -> float:
    """Return the seconds since 1970 of an RFC 3339 time; one without a zone is in UTC.

    Raises:
        ValueError: it is not a time.

    """
    found = dt.datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()


def time_text(seconds: float) -> str:
    """Return the RFC 3339 time of seconds since 1970, in UTC and whole seconds."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
