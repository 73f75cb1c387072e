"""Traces of requests and of rates, as they are published, and files that are neither."""

import numpy as np
import pytest

from tessera.errors import InvalidInput
from tessera.sim.serving.traces import Requests, read_requests

AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.99,396,109",
]
MOONCAKE = ["timestamp_ms,input_length,output_length", "3000,6758,500", "0,7322,490"]
RATES = ["t_s,a_rps,b_rps", "0,2,", "600,0,", "1200,4,", "1800,4,"]
CLIENTS = [
    "client,t_s,rate_rps,cv,pattern,arg1,arg2",
    "0,0,1.5,6.7,Gamma,0.02,73",
    "0,600,3,0.9,Gamma,1.2,2.1",
    "7,0,0.5,1.5,Weibull,0.7,1.1",
]


def read(lines: list[str], column: str | None = None, mean_rate: float | None = None, seed: int = 1) -> Requests:
    return read_requests(lines, "trace.csv", column=column, mean_rate=mean_rate, rng=np.random.default_rng(seed))


def test_requests_as_azure_and_mooncake_publish_them() -> None:
    azure = read(AZURE)
    assert azure.arrival_s.tolist() == pytest.approx([0.0, 4.30941])
    assert (azure.context.tolist(), azure.generated.tolist()) == ([374, 396], [44, 109])
    mooncake = read(MOONCAKE)
    assert (mooncake.arrival_s.tolist(), mooncake.context.tolist()) == ([0.0, 3.0], [7322, 6758])


def test_a_column_of_rates_with_a_gap_and_an_end() -> None:
    """The rate of a bin of 0 lies between its neighbors'; the mean over all bins is what was requested."""
    drawn = read(RATES, "a_rps", mean_rate=5.0)
    counts, _ = np.histogram(drawn.arrival_s, bins=[0, 600, 1200, 1800, 2400])
    assert len(drawn.arrival_s) == pytest.approx(5.0 * 2400, rel=0.1)
    assert counts / len(drawn.arrival_s) == pytest.approx(np.array([2, 3, 4, 4]) / 13, abs=0.03)
    assert 1000 < drawn.context.mean() < 1300
    assert 180 < drawn.generated.mean() < 240


def test_arrivals_are_as_irregular_as_published() -> None:
    drawn = read(["t_s,a_rps", *(f"{600 * each},10" for each in range(40))], "a_rps", mean_rate=10.0)
    gaps = np.diff(drawn.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, abs=0.1)


def test_clients_have_rates_of_their_own() -> None:
    drawn = read(CLIENTS, mean_rate=4.0)
    counts, _ = np.histogram(drawn.arrival_s, bins=[0, 600, 1200])
    assert counts[0] / counts[1] == pytest.approx(2 / 3, abs=0.35)


def test_the_same_seed_draws_the_same() -> None:
    assert read(RATES, "a_rps", 5.0).arrival_s.tolist() == read(RATES, "a_rps", 5.0).arrival_s.tolist()
    assert read(RATES, "a_rps", 5.0).arrival_s.tolist() != read(RATES, "a_rps", 5.0, seed=2).arrival_s.tolist()


def test_a_trace_of_requests_at_another_rate() -> None:
    lines = ["timestamp_ms,input_length,output_length", *(f"{1000 * each},{each},1" for each in range(1000))]
    thrice = read(lines, mean_rate=3.0)
    assert len(thrice.arrival_s) == pytest.approx(3000, abs=5)
    assert np.unique(thrice.arrival_s).tolist() == [float(each) for each in range(1000)]
    half = read(lines, mean_rate=0.5)
    assert len(half.arrival_s) == pytest.approx(500, abs=60)
    assert half.span_s == 999.0


def test_the_first_hours() -> None:
    assert read(MOONCAKE).first(2.9).context.tolist() == [7322]


# Keyed by a sentence: lines, column, mean rate, the error.
BAD: dict[str, tuple[list[str], str | None, float | None, str]] = {
    "an empty file": ([], None, None, "header"),
    "another table": (["a,b", "1,2"], None, None, "header: \"a,b\"|header: 'a,b'"),
    "no request": (AZURE[:1], None, None, "no request"),
    "no time": ([*AZURE[:2], "soon,1,2"], None, None, "line 3: TIMESTAMP: 'soon'"),
    "a negative number": ([MOONCAKE[0], "1,-5,2"], None, None, "line 2: input_length: '-5'"),
    "no number": ([MOONCAKE[0], "1,nan,2"], None, None, "line 2: input_length: 'nan'"),
    "a line cut off": ([MOONCAKE[0], "1,5"], None, None, "line 2: output_length"),
    "no column chosen": (RATES, None, 3.0, "--column.*a_rps, b_rps"),
    "no such column": (RATES, "c", 3.0, "'c'"),
    "no rate": (RATES, "a_rps", None, "--mean-rate"),
    "a column without values": (RATES, "b_rps", 3.0, "two bins"),
    "one bin": (RATES[:2], "a_rps", 3.0, "two bins"),
    "too many requests": (
        RATES,
        "a_rps",
        1e6,
        r"mean rate: 1e\+06 requests/s make more than 20,000,000 requests in all",
    ),
    "too many times": ([MOONCAKE[0], "0,1,2", "60000,1,2"], None, 1e6, "make more than 20,000,000 requests in all"),
    "more than a year": ([MOONCAKE[0], "0,1,2", "1e300,1,2"], None, None, "covers 1.16e\\+292 days, more than 366"),
    "rates of more than a year": (["t_s,a_rps", "0,1", "1e9,1"], "a_rps", 3.0, "covers 1.16e\\+04 days"),
    "next to none": (RATES, "a_rps", 1e-9, "requests come"),
    "a client as regular as no other": ([*CLIENTS[:1], "0,0,1,1e-300,Gamma,0,0"], None, 3.0, "line 2: cv: 1e-300"),
    "a client as irregular as no other": ([*CLIENTS[:1], "0,0,1,1e300,Gamma,0,0"], None, 3.0, "0.1 to 100"),
    "a shape without a mean": ([*CLIENTS[:1], "0,0,1,1,Weibull,0.001,0"], None, 3.0, "line 2: arg1: 0.001"),
    "a field that is no field": ([MOONCAKE[0], "9" * 131_073 + ",1,2"], None, None, "line 2 is not CSV"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_trace_is_refused(case: str) -> None:
    lines, column, mean_rate, error = BAD[case]
    with pytest.raises(InvalidInput, match=error):
        read(lines, column, mean_rate)
