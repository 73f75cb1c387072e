"""The agent's report of GPU usage, as JSON: for `tessera top` and `tessera recommend`."""

from typing import Final

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.usage.reportbounds import possible_report
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["read_usage", "write_usage"]

_MOST_OBJECTS: Final = 20_000
"""GPUs, devices and containers; a node of 8 GPUs with 7 instances, each shared by 4 containers, has 300."""


def write_usage(report: UsageReport) -> bytes:
    """Return a report as JSON."""
    return msgspec.json.encode(report)


def read_usage(text: bytes, subject: str) -> UsageReport:
    """Read a report; impossible values count as not reported.

    Raises:
        InvalidInput: it is not a report, or is too large to be one of a node; `subject` says where it came from.

    """
    objects = text.count(b"{")  # before it is decoded: millions of empty objects would take seconds
    if objects > _MOST_OBJECTS:
        found = f"its report has {objects} objects, more than {_MOST_OBJECTS}"
        raise InvalidInput(subject, found=found, hint="check who runs it")
    try:
        return possible_report(msgspec.json.decode(text, type=UsageReport))
    except UNDECODABLE as error:
        raise InvalidInput(
            subject, found=f"it is not a report ({error_phrase(error, text)})", hint="query the agent's port 9400"
        ) from error
