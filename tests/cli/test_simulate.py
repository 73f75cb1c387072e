"""`tessera simulate` from the outside: a folder of CSV files in, table, JSON, log lines and figures out."""

import csv
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tessera.cli import main
from tessera.core.packing.pack import POLICIES

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,65536,4,T4\nn1,16000,65536,2,G2\nn2,8000,65536,1,T4\n"
SIZES = [(1, 1000, ""), (1, 460, ""), (1, 810, "T4"), (2, 1000, ""), (0, 0, ""), (1, 190, "G2|T4"), (4, 1000, "")]


POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - name: main
    image: image
    resources: {{limits: {{nvidia.com/{resource}: 1}}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a small cluster and a trace `tiny` of 40 pods."""
    made = tmp_path / "openb"
    made.mkdir()
    (made / "openb_node_list_gpu_node.csv").write_text(NODES)
    rng = random.Random(0)
    rows = []
    for number in range(40):
        gpus, milli, models = rng.choice(SIZES)
        cpu, memory = rng.choice([500, 1000, 4000]), rng.choice([512, 8192])
        rows.append(f"pod-{number:02},{cpu},{memory},{gpus},{milli},{models}\n")
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    (made / "openb_pod_list_tiny.csv").write_text(header + "".join(rows))
    return made


def tessera(*words: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, words)])


def check(folder: Path, log: Path) -> int:
    """Replay a log by the CSV files alone; return how many pods were placed."""
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        nodes = {row["sn"]: row for row in csv.DictReader(file)}
    with (folder / "openb_pod_list_tiny.csv").open() as file:
        pods = {row["name"]: row for row in csv.DictReader(file)}
    room = {name: [int(node["cpu_milli"]), int(node["memory_mib"])] for name, node in nodes.items()}
    left = {name: [1000] * int(node["gpu"]) for name, node in nodes.items()}
    placed = 0
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        assert set(entry) == {"pod", "node", "gpus"}
        pod = pods[entry["pod"]]
        wants = [int(pod["cpu_milli"]), int(pod["memory_mib"])]
        count, milli, models = int(pod["num_gpu"]), int(pod["gpu_milli"]), pod["gpu_spec"]
        if entry["node"] is None:
            fitting = [
                name
                for name, node in nodes.items()
                if all(have >= want for have, want in zip(room[name], wants, strict=True))
                and sum(free >= milli for free in left[name]) >= count
                and (not models or node["model"] in models.split("|"))
            ]
            assert fitting == [], "dropped though a node fits"
            continue
        name, gpus = entry["node"], entry["gpus"]
        assert len(set(gpus)) == len(gpus) == count
        assert not models or nodes[name]["model"] in models.split("|")
        room[name] = [have - want for have, want in zip(room[name], wants, strict=True)]
        for gpu in gpus:
            left[name][gpu] -= milli
        assert min(*room[name], *left[name]) >= 0, "allocated twice"
        placed += 1
    return placed


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_log_can_be_checked_without_tessera(folder: Path, tmp_path: Path, policy: str) -> None:
    log = tmp_path / "run.jsonl"
    got = tessera("openb", folder, "--trace", "tiny", "--policy", policy, "--log", log, "-o", "json")
    assert got.exit_code == 0, got.output
    run = json.loads(got.output)["runs"][0]
    placed = check(folder, log)
    assert placed == run["arrived"] - run["dropped"]
    assert 0 < placed < run["arrived"]


def test_several_policies_have_a_log_each_and_the_same_arrivals(folder: Path, tmp_path: Path) -> None:
    words = ("--trace", "tiny", "--policy", "first-fit", "--policy", "random", "--log", tmp_path / "run.jsonl")
    got = tessera("openb", folder, *words)
    assert got.exit_code == 0, got.output
    assert "first-fit" in got.output
    logs = [tmp_path / f"run.{policy}.jsonl" for policy in ("first-fit", "random")]
    pods = [[json.loads(line)["pod"] for line in log.read_text().splitlines()] for log in logs]
    assert pods[0] == pods[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["openb", *sorted(log.name for log in logs)]


def test_a_seed_gives_the_same_output_each_time(folder: Path) -> None:
    words = ("--trace", "tiny", "--policy", "random", "-o", "json")
    outputs = [tessera("openb", folder, *words, "--seed", seed).output for seed in (1, 1, 2)]
    assert outputs[0] == outputs[1] != outputs[2]


def test_pods_come_and_go_under_a_load(folder: Path) -> None:
    words = ("--trace", "tiny", "--policy", "first-fit", "-o", "json")
    run = json.loads(tessera("openb", folder, *words, "--load", "0.9", "--queue", "backfill").output)["runs"][0]
    assert run["curve"]["axis"] == "time_s"
    assert 0 < run["mean_unallocated_percent"] < 100


def test_without_a_policy_the_best_published_one_is_run(folder: Path) -> None:
    assert "fgd" in tessera("openb", folder, "--trace", "tiny").output


def test_manifests_arrive_in_the_order_written(tmp_path: Path) -> None:
    """Two of three pods get an H100 slice each; instances must be cut, and the last pod finds no GPU left."""
    pods = [("b", "mig-4g.40gb"), ("a", "mig-3g.40gb"), ("c", "gpu")]
    (tmp_path / "pods.yaml").write_text(
        "---\n".join(POD.format(name=name, resource=resource) for name, resource in pods)
    )
    log = tmp_path / "run.jsonl"
    words = ("--gpus", "1xH100-80GB", "-f", tmp_path / "pods.yaml", "--policy", "first-fit", "--log", log)
    got = tessera("manifests", *words, "--create-s", 10, "-o", "json")
    assert got.exit_code == 0, got.output
    run = json.loads(got.output)["runs"][0]
    assert (run["arrived"], run["dropped"], run["instances_created"]) == (3, 1, 2)
    assert run["curve"]["allocated_percent"][-1] == 100.0
    assert [json.loads(line) for line in log.read_text().splitlines()] == [
        {"pod": "default/b", "node": "node-0", "gpus": [0]},
        {"pod": "default/a", "node": "node-0", "gpus": [0]},
        {"pod": "default/c", "node": None, "gpus": []},
    ]


def test_a_made_up_workload_runs_on_plain_nodes_and_on_a_given_fleet() -> None:
    plain = tessera("synthetic", "--nodes", 3, "--policy", "first-fit", "-o", "json")
    assert json.loads(plain.output)["gpus"] == 24
    given = tessera("synthetic", "--gpus", "4xT4", "--policy", "first-fit", "-o", "json", "--demand", 1, 1, 0)
    assert json.loads(given.output)["gpus"] == 4
    shares = json.loads(given.output)["runs"][0]["groups"]
    assert (shares[1]["arrived"] > 0, shares[3]["arrived"]) == (True, 0)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--demand", 0, 0, 0], id="no demand at all"),
        pytest.param(["--demand", "nan", 1, 1], id="a weight that is not a number"),
        pytest.param(["--demand", 1, 1, "inf"], id="a weight without end"),
        pytest.param(["--without-gpu", "nan"], id="a percentage that is not a number"),
        pytest.param(["--nodes", 3, "--gpus", "T4"], id="a number of nodes beside a fleet"),
    ],
)
def test_a_made_up_workload_of_wrong_numbers(words: list[object]) -> None:
    wrong = tessera("synthetic", *words)
    assert (wrong.exit_code, len(wrong.stderr.splitlines()), wrong.stdout) == (2, 1, "")


def test_figures_are_written_into_a_new_folder(folder: Path, tmp_path: Path) -> None:
    got = tessera("openb", folder, "--trace", "tiny", "--policy", "first-fit", "--plots", tmp_path / "new" / "plots")
    assert got.exit_code == 0, got.output
    names = {path.name for path in (tmp_path / "new" / "plots").iterdir()}
    assert {"allocation.png", "allocation.svg", "dropped.png", "dropped.svg"} <= names


# sentence: (words after the folder, what the error says)
WRONG = {
    "an unknown trace lists those there are": (["--trace", "huge", "--policy", "random"], "name one of tiny"),
    "an unknown policy lists those there are": (["--trace", "tiny", "--policy", "best"], "'first-fit'"),
    "a ratio of nothing": (
        ["--trace", "tiny", "--policy", "random", "--ratio", "0"],
        "--ratio: 0.0 is not more than 0 and at most 100",
    ),
    **{
        f"{option} of {number}": (["--trace", "tiny", option, number], f"error: {option}: ")
        for option, number in (("--ratio", "nan"), ("--load", "nan"), ("--load", "inf"), ("--create-s", "nan"))
    },
    "lifetimes without a load": (["--trace", "tiny", "--lifetimes", "3"], "--lifetimes: it has no"),
    "a ratio beside a load": (["--trace", "tiny", "--ratio", "2", "--load", "1"], "--ratio: it has no effect"),
    "a log in the place of a folder": (["--trace", "tiny", "--policy", "random", "--log", "/"], "Is a directory"),
    "a negative seed": (["--trace", "tiny", "--seed", "-1"], "--seed"),
    "two logs in one stream": (
        ["--trace", "tiny", "--policy", "random", "--policy", "fgd", "--log", "-"],
        "2 policies",
    ),
    "a log in no folder": (
        ["--trace", "tiny", "--policy", "random", "--log", "no/where/run"],
        "No such file or directory",
    ),
}


@pytest.mark.parametrize(("words", "want"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_one_line_and_exit_code_2(folder: Path, words: list[str], want: str) -> None:
    got = tessera("openb", folder, *words)
    assert (got.exit_code, len(got.stderr.splitlines()), got.stdout) == (2, 1, "")
    assert want in got.stderr


def test_weights_whose_sum_has_no_end_are_refused() -> None:
    got = tessera("synthetic", "--nodes", "3", "--demand", "1e308", "1e308", "1e308")
    assert (got.exit_code, "1e+308 is not at least 0 and at most 1000000" in got.stderr) == (2, True)


def test_figures_in_the_place_of_a_file_are_refused_before_the_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    words = ("--trace", "tiny", "--policy", "random", "--plots", tmp_path / "file", "--log", tmp_path / "log")
    got = tessera("openb", folder, *words)
    assert (got.exit_code, (tmp_path / "file").read_text(), (tmp_path / "log").exists()) == (2, "kept", False)
    for wrong in (tmp_path / "file" / "below", Path("/proc/nowhere/below")):
        log = ("--log", tmp_path / "log")
        got = tessera("openb", folder, *words[:4], "--plots", wrong, *log)
        assert (got.exit_code, len(got.stderr.splitlines()), (tmp_path / "log").exists()) == (2, 1, False)
