"""Requests over time, from published traces: Azure LLM 2023, Mooncake, and ServeGen's rates of requests.

A trace of requests gives each arrival with its tokens. A file of rates gives requests per second by the bin: arrivals
are drawn with the burstiness that is published for them, and tokens as Azure's conversations have them.
"""

import csv
import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, pairwise
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.errors import InvalidInput, shown

__all__ = ["Requests", "read_requests"]

Floats = NDArray[np.float64]
Row = Mapping[str, str]

_CV: Final = 2.0
"""Coefficient of variation of the times between arrivals, where a file has none."""
_LEAST_SHAPE, _MOST_SHAPE = 0.1, 100.0
"""Bounds of a client's coefficient of variation and Weibull shape; ServeGen's are from 0.2 to 20."""
_PERCENT: Final = (*range(0, 100, 5), 99, 100)
_CONTEXT: Final = (
    *(2, 181, 207, 372, 387, 396, 403, 414, 703, 984),
    *(1020, 1045, 1071, 1097, 1130, 1189, 1315, 1876, 2734, 4083, 4142, 14050),
)
_GENERATED: Final = (
    *(7, 41, 54, 67, 77, 85, 91, 96, 103, 113),
    *(129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 601, 1000),
)
"""Tokens of prompts and answers of azure_llm_2023_conv.csv at these percentiles (CC-BY 4.0, Azure public dataset)."""
_MOST: Final = 20_000_000
"""Requests of a trace; more do not fit in memory."""
_LONGEST_S: Final = 366 * 86_400.0
"""Of a trace: policies decide every 15 s, whatever happens."""


class Requests(msgspec.Struct, frozen=True):
    """A trace of requests, in order of arrival; the first comes at 0 seconds."""

    arrival_s: Floats
    context: Floats
    """Tokens of the prompt."""
    generated: Floats
    """Tokens of the answer."""

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last request."""
        return float(self.arrival_s[-1])

    def first(self, seconds: float) -> "Requests":
        """Return the requests of the first so many seconds, at least the first one."""
        count = int(np.searchsorted(self.arrival_s, seconds, side="right"))
        return Requests(self.arrival_s[:count], self.context[:count], self.generated[:count])

    def at_rate(self, mean_rate: float, rng: np.random.Generator) -> "Requests":
        """Return the same trace with another number of requests: some are left out, or come several times at once."""
        count = len(self.arrival_s)
        factor = mean_rate * self.span_s / count
        copies = (rng.random(count) < factor % 1.0) + int(factor)
        copies[[0, -1]] = np.maximum(copies[[0, -1]], 1)  # the span stays
        parts = (np.repeat(each, copies) for each in (self.arrival_s, self.context, self.generated))
        return Requests(*parts)


def _order(times: Floats, context: Floats, generated: Floats) -> Requests:
    order = np.argsort(times, kind="stable")
    return Requests(times[order] - times[order[0]], context[order], generated[order])


def read_requests(
    lines: Iterable[str], name: str, *, column: str | None, mean_rate: float | None, rng: np.random.Generator
) -> Requests:
    """Return the requests of a trace, whose header says which kind it is.

    Args:
        lines: of the file.
        name: of the file, for errors.
        column: of a file of rates, the one to read.
        mean_rate: requests per second to scale to; needed for files of rates.
        rng: for what is drawn.

    Raises:
        InvalidInput: no such header, a value that cannot be read, no request at all, too many.

    """
    rows = csv.DictReader(lines)
    try:
        return _read_rows(rows, name, column=column, mean_rate=mean_rate, rng=rng)
    except csv.Error as error:
        found = f"line {rows.line_num + 1} is not CSV: {error}"
        raise InvalidInput(name, found=found, hint="name a trace of requests or of rates") from error


def _read_rows(
    rows: "csv.DictReader[str]", name: str, *, column: str | None, mean_rate: float | None, rng: np.random.Generator
) -> Requests:
    header = tuple(rows.fieldnames or ())
    by_header: dict[tuple[str, ...], tuple[Callable[[str], float], str, str]] = {
        ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): (_clock_s, "ContextTokens", "GeneratedTokens"),
        ("timestamp_ms", "input_length", "output_length"): (_from_ms, "input_length", "output_length"),
    }
    if column is not None and header[:1] != ("t_s",):
        cause = f"it is {shown(column)}, and the trace has no columns of rates"
        raise InvalidInput("--column", found=cause, hint="leave it out")
    if header in by_header:
        found = _requests(rows, name, by_header[header], header[0])
        if mean_rate is None:
            return found
        _check_count(name, mean_rate, found.span_s)
        return found.at_rate(mean_rate, rng)
    if header[:1] == ("t_s",) and len(header) > 1:
        bins = _column(rows, name, header[1:], column)
    elif header == ("client", "t_s", "rate_rps", "cv", "pattern", "arg1", "arg2"):
        bins = _clients(rows, name)
    else:
        raise InvalidInput(
            f"{name}: header",
            found=shown(",".join(header)),
            expected="that of a trace of requests or of rates",
            hint="TIMESTAMP,ContextTokens,GeneratedTokens; timestamp_ms,input_length,output_length; "
            "t_s,NAME_rps,...; client,t_s,rate_rps,cv,pattern,arg1,arg2",
        )
    if mean_rate is None:
        raise InvalidInput(
            f"{name}: a file of rates", found="it has no mean rate", hint="give --mean-rate, requests a second"
        )
    return _drawn(bins, name, mean_rate, rng)


def _value(row: Row, key: str, line: int, name: str, read: Callable[[str], float] = float) -> float:
    text = row.get(key)
    try:
        value = read(text or "")
    except (ValueError, OverflowError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise InvalidInput(f"{name}, line {line}: {key}", found=shown(text), expected="a number from 0 on, or a time")
    return value


def _clock_s(text: str) -> float:
    # 100 ns digits, of which datetime takes microseconds.
    whole, _, digits = text.partition(".")
    return dt.datetime.fromisoformat(whole).replace(tzinfo=dt.UTC).timestamp() + float(f"0.{digits or 0}")


def _from_ms(text: str) -> float:
    return float(text) / 1000


def _requests(
    rows: "csv.DictReader[str]", name: str, how: tuple[Callable[[str], float], str, str], clock: str
) -> Requests:
    read, context, generated = how
    found = [
        (
            _value(row, clock, rows.line_num, name, read),
            _value(row, context, rows.line_num, name),
            _value(row, generated, rows.line_num, name),
        )
        for row in islice(rows, _MOST)
    ]
    if not found:
        raise InvalidInput(name, found="it has no request", hint="name a trace with at least one")
    times, contexts, tokens = np.array(found, dtype=np.float64).T
    _check_span(name, times.max() - times.min())
    return _order(times, contexts, tokens)


def _check_count(name: str, mean_rate: float, span_s: float) -> None:
    if mean_rate * span_s > _MOST:
        found = f"{mean_rate:g} requests/s make more than {_MOST:,} requests in all"
        raise InvalidInput(f"{name}: mean rate", found=found, hint="give a lower --mean-rate or a shorter trace")


def _check_span(name: str, span_s: float) -> None:
    if span_s > _LONGEST_S:
        found = f"it covers {span_s / 86_400:.3g} days, more than {_LONGEST_S / 86_400:.0f}"
        raise InvalidInput(name, found=found, hint="check its times, or name a shorter trace")


class _Bin(msgspec.Struct, frozen=True):
    """Requests of one client in one bin."""

    client: str
    start_s: float
    rate: float
    cv: float
    weibull: float = 0.0
    """Shape of a Weibull distribution of the times between arrivals; 0 for a gamma distribution with this `cv`."""


def _column(rows: "csv.DictReader[str]", name: str, columns: tuple[str, ...], column: str | None) -> list[_Bin]:
    if column not in columns:
        raise InvalidInput(
            f"{name}: column",
            found=f"there is none named {shown(column)}" if column else "none is chosen",
            hint=f"give --column with one of {', '.join(columns)}",
        )
    read = [
        (_value(row, "t_s", rows.line_num, name), _value(row, column, rows.line_num, name))
        for row in islice(rows, _MOST)
        if row[column]
    ]
    # A bin of 0 is a gap of the source and no idle time: the rate goes on between its neighbors.
    measured = [(t, rate) for t, rate in read if rate > 0]
    if not measured:
        return []
    rates = np.interp([t for t, _ in read], [t for t, _ in measured], [rate for _, rate in measured])
    return [_Bin("", t, float(rate), _CV) for (t, _), rate in zip(read, rates, strict=True)]


def _clients(rows: "csv.DictReader[str]", name: str) -> list[_Bin]:
    found = []
    for row in islice(rows, _MOST):
        start_s, rate, cv, first = (_value(row, key, rows.line_num, name) for key in ("t_s", "rate_rps", "cv", "arg1"))
        shape = first if row["pattern"] == "Weibull" else 0.0
        for key, value in (("cv", cv), ("arg1", shape)):
            if value and not _LEAST_SHAPE <= value <= _MOST_SHAPE:
                expected = f"0, or a number from {_LEAST_SHAPE:g} to {_MOST_SHAPE:g}"
                raise InvalidInput(f"{name}, line {rows.line_num}: {key}", found=f"{value:g}", expected=expected)
        found.append(_Bin(row["client"], start_s, rate, cv or 1.0, shape))
    return found


def _drawn(bins: list[_Bin], name: str, mean_rate: float, rng: np.random.Generator) -> Requests:
    starts = sorted({each.start_s for each in bins})
    if not starts[1:] or not any(each.rate for each in bins):
        raise InvalidInput(name, found="it has no rates in two bins", hint="give at least two bins, not all 0")
    _check_span(name, starts[-1] - starts[0])
    width_s = min(b - a for a, b in pairwise(starts))
    scale = mean_rate * (starts[-1] - starts[0] + width_s) / (sum(each.rate for each in bins) * width_s)
    _check_count(name, mean_rate, starts[-1] - starts[0])
    by_client: dict[str, list[_Bin]] = {}
    for each in bins:
        by_client.setdefault(each.client, []).append(each)
    times = np.sort(np.concatenate([_renewals(each, scale, width_s, rng) for each in by_client.values()]))
    if not len(times):
        raise InvalidInput(f"{name}: mean rate", found=f"{mean_rate:g}", expected="a rate by which requests come")
    chance = rng.random((2, len(times))) * 100
    return _order(times, np.interp(chance[0], _PERCENT, _CONTEXT), np.interp(chance[1], _PERCENT, _GENERATED))


def _renewals(bins: list[_Bin], scale: float, width_s: float, rng: np.random.Generator) -> Floats:
    """Return a client's arrivals: in each bin a renewal process of the bin's rate."""
    times = []
    for each in bins:
        count = each.rate * scale * width_s
        size = int(count + 6 * max(each.cv, 1.0) * math.sqrt(count) + 6)
        if each.weibull:
            gaps = rng.weibull(each.weibull, size) / math.gamma(1 + 1 / each.weibull)
        else:
            gaps = rng.gamma(1 / each.cv**2, each.cv**2, size)
        at = np.cumsum(gaps) - gaps[0] * rng.random()
        times.append(each.start_s + at[at < count] / max(count, 1e-12) * width_s)
    return np.concatenate(times)
