"""What waits in front of model servers: by namespace and Service, and nothing where it is not a number above 0."""

import msgspec
import pytest

from tessera.api.prometheus.pendingrequests import PendingRequests, read_pending_requests
from tessera.errors import InvalidInput

LLM = {"namespace": "serving", "service": "llm"}


def answer(*series: tuple[dict[str, str], str]) -> bytes:
    result = [{"metric": metric, "value": [1000, value]} for metric, value in series]
    return msgspec.json.encode({"status": "success", "data": {"resultType": "vector", "result": result}})


def test_series_of_one_server_are_added_up() -> None:
    other = {"namespace": "serving", "service": "embed"}
    found = read_pending_requests(answer(({**LLM, "pod": "a"}, "1"), ({**LLM, "pod": "b"}, "0.5"), (other, "2")), "p")
    assert found == PendingRequests({("serving", "llm"): 1.5, ("serving", "embed"): 2.0})


@pytest.mark.parametrize("text", ["0", "-1", "NaN", "+Inf", "-Inf", "many"])
def test_what_is_no_number_above_zero_waits_for_nothing(text: str) -> None:
    assert read_pending_requests(answer((LLM, text)), "p") == PendingRequests({})


def test_sums_that_no_number_holds_are_many() -> None:
    found = read_pending_requests(answer(*[(LLM, "1e308")] * 3), "p")
    assert found == PendingRequests({("serving", "llm"): 1e9})


def test_no_series_is_nothing_that_waits() -> None:
    assert read_pending_requests(answer(), "p") == PendingRequests({})


@pytest.mark.parametrize("metric", [{"namespace": "evil"}, {"service": "llm"}, {"namespace": "", "service": "llm"}, {}])
@pytest.mark.parametrize("value", ["0", "7"])
def test_series_without_labels_do_not_count_and_harm_no_others(metric: dict[str, str], value: str) -> None:
    for text, want in (("2", {("serving", "llm"): 2.0}), ("0", {})):
        found = read_pending_requests(answer((metric, value), (LLM, text)), "p")
        assert found.servers == want
        assert found.problem == f"1 of 2 series lack namespace or service; one has {sorted(metric)}"


BAD: dict[str, tuple[bytes, str]] = {
    "no labels, as of a sum over all": (
        answer(({}, "1")),
        r"^p: 1 of 1 series lack namespace or service; one has \[\]: write it as `sum by \(namespace, ",
    ),
    "labels of another name": (answer(({"exported_service": "llm"}, "1")), r"one has \['exported_service'\]"),
    "a matrix": (
        b'{"data": {"result": [{"metric": {"namespace": "a", "service": "b"}, "values": []}]}}',
        "^p: it is not a vector: write",
    ),
    "a scalar": (b'{"data": {"resultType": "scalar", "result": [1000, "1"]}}', "an answer of Prometheus"),
    "too many": (answer(*[(LLM, "1")] * 10_001), "^p: 10001 series are more than 10000$"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_says_nothing_of_servers_is_refused(case: str) -> None:
    content, want = BAD[case]
    with pytest.raises(InvalidInput, match=want):
        read_pending_requests(content, "p")
