"""The agent's report of GPU usage, as JSON: for `tessera top` and `tessera recommend`."""

import msgspec

from tessera.api.fields import misfit
from tessera.core.usage.reportbounds import possible_report
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["read_usage", "write_usage"]


def write_usage(report: UsageReport) -> bytes:
    """Return a report as JSON."""
    return msgspec.json.encode(report)


def read_usage(text: bytes, subject: str) -> UsageReport:
    """Read a report; impossible values count as not reported.

    Raises:
        InvalidInput: it is none; `subject` says where it came from.

    """
    try:
        return possible_report(msgspec.json.decode(text, type=UsageReport))
    except UNDECODABLE as error:
        raise InvalidInput(
            subject, found=f"it is not a report ({misfit(error, text)})", hint="query the agent's port 9400"
        ) from error
