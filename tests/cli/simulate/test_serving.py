"""`tessera simulate serving` from the outside: a CSV file in, table, JSON, log lines and figures out."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tessera.cli import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return half an hour of two requests a second in Mooncake's format."""
    path = tmp_path / "trace.csv"
    rows = (f"{500 * each},{100 + each % 900},{50 + each % 300}\n" for each in range(3600))
    path.write_text("timestamp_ms,input_length,output_length\n" + "".join(rows))
    return path


def tessera(*words: object) -> Result:
    return CliRunner().invoke(main, ["simulate", "serving", *map(str, words)])


def test_a_table_of_all_policies(trace: Path) -> None:
    done = tessera(trace)
    assert done.exit_code == 0, done.output
    assert "3,600 requests in 0.5 h; plan:" in done.output
    assert [line.split()[0] for line in done.output.splitlines()[-4:]] == [
        "published",
        "waiting",
        "in-flight",
        "tessera",
    ]


def test_json_log_and_figures(trace: Path, tmp_path: Path) -> None:
    log, plots = tmp_path / "log.jsonl", tmp_path / "plots"
    chosen = ["--policy", "tessera", "--policy", "published", "--cold-start", 30, "--max-replicas", 4]
    done = tessera(trace, *chosen, "--log", log, "--plots", plots, "-o", "json")
    rows = json.loads(done.stdout)
    assert [each["policy"] for each in rows] == ["tessera", "published"]
    assert set(rows[0]) == {
        "policy", "replica_hours", "clairvoyant_replica_hours", "within_slo", "changes", "lost"
    }  # fmt: skip
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert set(lines[0]) == {"policy", "time_s", "desired", "ready", "reason"}
    assert [(each["policy"], each["time_s"]) for each in lines if each["time_s"] == 0] == [
        ("tessera", 0),
        ("published", 0),
    ]
    assert max(each["desired"] for each in lines) <= 4
    assert sorted(each.name for each in plots.iterdir()) == ["replicas.png", "replicas.svg"]


def test_policies_that_are_reported_of_more_slots_than_there_are_ask_for_fewer_replicas(trace: Path) -> None:
    words = [trace, "--policy", "in-flight", "-o", "json"]
    right, wrong = (json.loads(tessera(*words, *more).stdout)[0] for more in ((), ("--spec-slots", 256)))
    assert wrong["replica_hours"] < right["replica_hours"]


def test_the_same_seed_prints_the_same(tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("t_s,a_rps,b_rps\n" + "".join(f"{600 * each},{1 + each % 3},1\n" for each in range(12)))
    words = [rates, "--column", "a_rps", "--mean-rate", 2, "--hours", 1, "-o", "json"]
    assert tessera(*words).stdout == tessera(*words).stdout
    assert tessera(*words, "--seed", 7).stdout != tessera(*words).stdout


def test_invalid_input_is_reported_before_anything_runs(trace: Path, tmp_path: Path) -> None:
    assert "--column" in tessera(_rates(tmp_path)).output
    missing = tessera(tmp_path / "none.csv")
    assert (missing.exit_code, "No such file" in missing.output) == (2, True)
    assert "UTF-8" in tessera(_bytes(tmp_path)).output
    assert tessera(trace, "--log", tmp_path / "no" / "folder" / "log").exit_code == 2
    assert tessera(trace, "--cold-start", "nan").exit_code == 2


def _rates(folder: Path) -> Path:
    (folder / "rates.csv").write_text("t_s,a_rps\n0,1\n600,2\n")
    return folder / "rates.csv"


def _bytes(folder: Path) -> Path:
    (folder / "bytes.csv").write_bytes(b"timestamp_ms,input_length,output_length\n\xff\xfe,1,1\n")
    return folder / "bytes.csv"


def test_an_option_that_would_change_nothing_is_refused(trace: Path) -> None:
    assert "--column: it is 'x', and the trace has no columns of rates" in tessera(trace, "--column", "x").output
    for policies, refused in ((("in-flight",), True), (("in-flight", "tessera"), False)):
        words = [word for policy in policies for word in ("--policy", policy)]
        done = tessera(trace, *words, "--idle-seconds", 600)
        assert ("--idle-seconds: it has no effect without --policy tessera" in done.output) is refused
        assert (done.exit_code != 0) is refused
