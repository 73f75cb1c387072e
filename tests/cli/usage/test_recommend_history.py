"""`tessera recommend --prometheus`, against a real Prometheus with two hours of what an agent exposed."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from builders.exposed import node_metrics
from harness.metricsserver import make_certificates
from harness.prometheusserver import history, serving_history
from tessera.cli import main


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["recommend", *arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a Prometheus, over TLS; an hour ago the busy container used 1900 MiB, now 700."""
    folder = tmp_path_factory.mktemp("prometheus")
    make_certificates(folder)
    now_s = int(time.time())
    samples = history(node_metrics(1900), range(now_s - 7200, now_s - 3600, 60))
    samples += history(node_metrics(700), range(now_s - 3600, now_s + 1, 60))
    with serving_history(folder, samples, certificate=folder / "server.crt") as address:
        (folder / "token").write_text("a-token\n")
        yield f"{address} {folder}"


def test_the_peak_is_that_of_the_window_and_not_of_now(url: str) -> None:
    address, _, folder = url.partition(" ")
    options = ["--prometheus", address, "--ca-file", f"{folder}/serving.crt", "--token-file", f"{folder}/token"]
    result = call(*options, "--window", "1d", "--all", "-o", "json")
    assert result.exit_code == 0, result.output
    found = {each["pod"]: each for each in json.loads(result.stdout)}
    assert {pod: (each["verdict"], each["fits"]) for pod, each in found.items()} == {
        "idle": ("unused", ""),
        "busy": ("fits", ""),
        "slice": ("fits", ""),
    }
    busy, own = found["busy"], found["slice"]
    assert (busy["node"], busy["gpu"], busy["allocatedMib"], busy["peakMib"], busy["meanPercent"]) == (
        "n1", 0, 2048, 1900, 20,
    )  # fmt: skip
    assert (own["device"], own["peakMib"], own["meanPercent"]) == ("1g.5gb", 900, 25)
    assert 6900 <= busy["observedS"] <= 7800
    recent = json.loads(call(*options, "--window", "30m", "--all", "-o", "json").stdout)
    assert {each["pod"]: (each["peakMib"], each["fits"]) for each in recent}["busy"] == (700, "1 GiB")


def test_a_pod_has_no_history_of_an_earlier_one_of_its_name(tmp_path: Path) -> None:
    now_s = int(time.time())
    former = node_metrics(1900).replace(b'pod_uid="uid-busy"', b'pod_uid="uid-former"')
    samples = history(former, range(now_s - 7200, now_s - 3600, 60))
    samples += history(node_metrics(700), range(now_s - 1800, now_s + 1, 60))
    with serving_history(tmp_path, samples) as url:
        result = call("--prometheus", url, "--window", "1d", "--all", "-o", "json")
    assert result.exit_code == 0, result.output
    busy = {each["pod"]: each for each in json.loads(result.stdout)}["busy"]
    assert (busy["peakMib"], busy["fits"]) == (700, "1 GiB")
    assert busy["observedS"] <= 2100


def test_of_two_clusters_in_one_prometheus_the_selector_chooses(tmp_path: Path) -> None:
    """Names and UIDs are the same in both."""
    now_s = int(time.time())
    samples = "".join(
        history(node_metrics(used_mib).replace(b"{", b'{cluster="%s",' % cluster), range(now_s - 7200, now_s + 1, 60))
        for cluster, used_mib in ((b"a", 1900), (b"b", 700))
    )
    peaks = {}
    with serving_history(tmp_path, samples) as url:
        for selector in ('cluster="a"', "cluster=b", 'cluster=~".+"', "cluster=c"):
            result = call("--prometheus", url, "--prometheus-selector", selector, "--all", "-o", "json")
            assert result.exit_code == 0, result.output
            peaks[selector] = [each["peakMib"] for each in json.loads(result.stdout) if each["pod"] == "busy"]
    assert peaks == {'cluster="a"': [1900], "cluster=b": [700], 'cluster=~".+"': [1900], "cluster=c": []}


def test_a_server_whose_certificate_nobody_signed_gets_no_question(url: str) -> None:
    result = call("--prometheus", url.partition(" ")[0])
    assert (result.exit_code, "SSLCertVerif" in result.stderr) == (4, True), result.output


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "nobody answers": (["--prometheus", "http://127.0.0.1:1"], 4, "check that Prometheus scrapes the agents"),
    "no address": (["--prometheus", "prometheus:9090"], 2, "address of metrics"),
    "no window": (["--prometheus", "http://127.0.0.1:1", "--window", "14d])"], 2, "a number and m, h, d or w"),
    "agents as well": (["--prometheus", "http://127.0.0.1:1", "--agent", "n1"], 2, "leave out one of the two"),
    "a window of agents": (["--agent", "127.0.0.1:1", "--window", "1d"], 2, "give --prometheus as well"),
    "a selector of agents": (
        ["--agent", "127.0.0.1:1", "--prometheus-selector", "a=b"],
        2,
        "give --prometheus as well",
    ),
    "no selector": (
        ["--prometheus", "http://127.0.0.1:1", "--prometheus-selector", "a"],
        2,
        "label matchers of PromQL",
    ),
    "a token in the clear": (["--prometheus", "http://prometheus:9090", "--token-file", "token"], 2, "https://"),
    "a token to no address": (["--prometheus", "http://[1/", "--token-file", "token"], 2, "https://"),
    "no token": (["--prometheus", "http://localhost:1", "--token-file", "lines"], 2, "one line of ASCII"),
    "no certificates": (["--prometheus", "https://127.0.0.1:1", "--ca-file", "token"], 2, "it is not PEM"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_asked_is_reported(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("a-token\n")
    (tmp_path / "lines").write_text("two\nlines\n")
    arguments, code, words = REFUSED[case]
    result = call(*arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.output
