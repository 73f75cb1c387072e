"""The command `plan` and `explain` on good and bad input: outputs, exit codes, nothing half-written."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from click import Command, Context, Group, Option
from click.testing import CliRunner, Result

from tessera.cli import COMMANDS, main

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = str(EXAMPLES / "1-job-of-60-slices/job.yaml")


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=given, catch_exceptions=False)


POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
    - name: main
      resources: {limits: {LIMITS}}
"""


def manifest(limits: str, name: str = "a") -> str:
    return POD.replace("NAME", name).replace("LIMITS", limits)


# Keyed by a sentence: arguments, standard input, what the error must name.
BAD: dict[str, tuple[list[str], str, list[str]]] = {
    "an unknown GPU": (["--gpus", "8xH100-81GB"], "", ["H100-81GB", "H100-80GB"]),
    "an absurd number of GPUs": (["--gpus", "99999999xT4"], "", ["99999999xT4"]),
    "no GPUs at all": (["-f", JOB], "", ["--cluster", "--gpus"]),
    "an empty fleet": (["--cluster", "-"], "nodes: []", ["standard input", "no node"]),
    "an empty file as fleet": (["--cluster", "-"], "", ["no node"]),
    "a profile that the model does not offer": (
        ["--cluster", "-"],
        "nodes:\n- {name: a, gpus: [{model: A100-40GB, sharing: {mig: {1g.10gb: 1, 9g.90gb: 1}}}]}",
        ["line 2", "9g.90gb", "1g.5gb"],
    ),
    "instances that do not fit together": (
        ["--cluster", "-"],
        "nodes:\n- {name: a, gpus: [{model: A100-40GB, sharing: {mig: {3g.20gb: 3}}}]}",
        ["line 2", "3g.20gb"],
    ),
    "two nodes of one name": (["--cluster", "-"], "nodes:\n- {name: a}\n- {name: a}", ["standard input", "node a"]),
    "an unknown field of a fleet": (["--cluster", "-"], "nodes:\n- {name: a, gpu: 8xT4}", ["line 2", "gpu"]),
    "broken YAML": (["--gpus", "T4", "-f", "-"], "kind: Pod\nmetadata: {name: a", ["standard input", "line"]),
    "broken YAML in the second document": (
        ["--gpus", "T4", "-f", "-"],
        f"{manifest('nvidia.com/gpu: 1')}---\nkind: [Pod\n",
        ["standard input", "document 2", "line"],
    ),
    "a negative quantity": (
        ["--gpus", "T4", "-f", "-"],
        manifest("nvidia.com/gpu: -1"),
        ["line 8", "nvidia.com/gpu", "-1"],
    ),
    "a fraction of a device": (["--gpus", "T4", "-f", "-"], manifest("nvidia.com/gpu: 0.5"), ["nvidia.com/gpu", "0.5"]),
    "an absurd quantity": (["--gpus", "T4", "-f", "-"], manifest("nvidia.com/gpu: 1e400"), ["nvidia.com/gpu", "1e400"]),
    "a pod twice in one file": (
        ["--gpus", "T4", "-f", "-"],
        f"{manifest('nvidia.com/gpu: 1')}---{manifest('nvidia.com/gpu: 1')}",
        ["default/a", "document 2"],
    ),
    "a file that is not there": (["--gpus", "T4", "-f", "missing.yaml"], "", ["missing.yaml", "No such file"]),
    "an unknown policy": (["--gpus", "T4", "--policy", "best"], "", ["best", "best-fit"]),
    "a limit that is not a number": (["--gpus", "T4", "--exact", "--limit", "nan"], "", ["--limit", "nan"]),
    "a limit without end": (["--gpus", "T4", "--exact", "--limit", "inf"], "", ["--limit", "inf"]),
    "a limit of nothing": (["--gpus", "T4", "--limit", "5"], "", ["--limit", "give --exact as well"]),
    "a policy beside the exact solver": (
        ["--gpus", "T4", "--exact", "--policy", "tessera"],
        "",
        ["--policy", "no effect with --exact"],
    ),
    "a price without a model": (["--gpus", "T4", "--price", "2.50"], "", ["--price", "H100-80GB=2.50"]),
    "a price without money": (["--gpus", "T4", "--price", "T4=cheap"], "", ["--price", "T4=cheap"]),
    "a price below nothing": (["--gpus", "T4", "--price", "T4=-1"], "", ["--price", "T4=-1"]),
    "a price of an unknown model": (["--gpus", "T4", "--price", "T5=1"], "", ["T5"]),
    "two prices of one model": (["--gpus", "T4", "--price", "T4=1", "--price", "t4=2"], "", ["another price of T4"]),
    "a type without a price": (["--fit", "--gpus", "T4", "--gpus", "L4", "--price", "T4=1"], "", ["no price of L4"]),
    "types without GPUs": (["--fit", "--cluster", "-"], "nodes: [{name: a}]", ["--fit", "no node with GPUs"]),
    "a cluster with running pods as types": (
        ["--fit", "--cluster", str(EXAMPLES / "7-gpu-usage/cluster.yaml")],
        "",
        ["--fit", "running pods"],
    ),
    "no number of GPUs": (["--cluster", "-"], "nodes:\n- {name: a, count: .nan}", ["line 2", "count", "NaN"]),
    "cores without end": (["--cluster", "-"], "nodes:\n- {name: a, cpu: .inf}", ["line 2", "cpu", "Infinity"]),
    "memory that is not a number": (["--gpus", "T4", "-f", "-"], manifest("memory: .nan"), ["line 8", "memory", "NaN"]),
    "a file without a name": (
        ["--gpus", "T4", "-f", ""],
        "",
        ["a file to read: its name is empty: name a file, a folder, or -"],
    ),
    "a fleet without a name": (
        ["--cluster", ""],
        "",
        ["a file to read: its name is empty: name a file, a folder, or -"],
    ),
    "a picture without a name": (["--gpus", "T4", "--draw", ""], "", ["output file"]),
    "a picture of another kind": (["--gpus", "T4", "--draw", "a.png"], "", ["--draw a.png", ".svg"]),
    "a picture in a folder that is not there": (["--gpus", "T4", "--draw", "missing/a.svg"], "", ["missing/a.svg"]),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_is_one_clear_error(sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, given, named = BAD[sentence]
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--draw", "out.svg", "--write", "out"] if "--draw" not in arguments else []):
        result = run("plan", *arguments, *more, given=given)
        assert result.exit_code == 2
        assert result.stdout == ""
        errors = [line for line in result.stderr.splitlines() if not line.startswith("note:")]
        assert len(errors) == 1
        assert errors[0].startswith("error: ")
        assert [word for word in named if word not in errors[0]] == []
    assert list(tmp_path.iterdir()) == []


def test_outputs_say_the_same() -> None:
    common = ("plan", "--gpus", "8xH100-80GB", "-f", JOB)
    as_json = json.loads(run(*common, "-o", "json").stdout)
    assert yaml.safe_load(run(*common, "-o", "yaml").stdout) == as_json
    table = run(*common).stdout
    assert "56" in table
    assert "memory slice 7 free" in " ".join(table.split())


def test_drawing_and_files_of_an_administrator(tmp_path: Path) -> None:
    result = run(
        "plan", "--gpus", "1xA100-40GB", "-f", "-", "-o", "json",
        "--draw", str(tmp_path / "plan.svg"), "--write", str(tmp_path / "out"),
        given=manifest("nvidia.com/mig-3g.20gb: 1"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert ET.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")
    parted = yaml.safe_load((tmp_path / "out/mig-parted/node-0.yaml").read_text())
    assert parted["version"] == "v1"
    (config,) = parted["mig-configs"].values()
    assert config == [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.20gb": 1}}]


@pytest.mark.parametrize("command", [main.get_command(Context(main), name) for name in COMMANDS])
def test_options_are_named_alike_on_the_command_line_and_in_the_environment(command: Command) -> None:
    """The environment name comes from the parameter, so it must be the option's long name."""
    commands = command.commands.values() if isinstance(command, Group) else [command]
    options = [option for each in commands for option in each.params if isinstance(option, Option)]
    assert all(f"--{(option.name or '').replace('_', '-')}" in option.opts for option in options)


def test_a_policy_of_the_environment_yields_to_the_exact_solver_on_the_command_line() -> None:
    def outcome(*arguments: str, **env: str) -> str:
        result = CliRunner().invoke(main, ["plan", "--gpus", "T4", "-o", "json", *arguments], env=env)
        return json.loads(result.stdout)["policy"] if result.exit_code == 0 else result.stderr

    assert outcome("--exact", TESSERA_PLAN_POLICY="best-fit") == "exact"
    assert "--policy: it has no effect with --exact" in outcome(TESSERA_PLAN_POLICY="best-fit", TESSERA_PLAN_EXACT="1")
    assert "--policy: it has no effect with --exact" in outcome("--policy", "best-fit", TESSERA_PLAN_EXACT="1")
    assert outcome(TESSERA_PLAN_POLICY="best-fit", TESSERA_PLAN_LIMIT="5") == "best-fit"


GPUSHARE = {
    "kind": "Node",
    "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "1"}},
    "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "aliyun.com/gpu-mem": "15109"}},
}

# Keyed by a sentence: options, --cluster, the request; desired are the MiB allocated (none where it waits) and notes.
UNITS: dict[str, tuple[list[str], str, int, int | None, str]] = {
    "GiB by default": ([], "", 4, 4096, ""),
    "MiB when the user says so": (["--share-unit", "MiB"], "", 4096, 4096, ""),
    "MiB where the nodes show it": ([], json.dumps(GPUSHARE), 4096, 4096, ""),
    "GiB where the user says so against the nodes": (["--share-unit", "GiB"], json.dumps(GPUSHARE), 4, 4096, ""),
    "a number of MiB read as GiB is noted": ([], "", 4096, None, "use --share-unit MiB"),
}


@pytest.mark.parametrize("sentence", UNITS)
def test_the_unit_of_a_memory_share(sentence: str, tmp_path: Path) -> None:
    options, fleet, ask, want, note = UNITS[sentence]
    (tmp_path / "fleet.json").write_text(fleet)
    where = ["--cluster", str(tmp_path / "fleet.json")] if fleet else ["--gpus", "T4"]
    for command in (["plan"], ["explain", "a"]):
        result = run(*command, *where, *options, "-f", "-", "-o", "json", given=manifest(f"aliyun.com/gpu-mem: {ask}"))
        assert result.exit_code == 0, result.output
        got = json.loads(result.stdout)
        placed = got["assignments"] if command == ["plan"] else got[0]["placed"]
        devices = [each for pod in placed for each in pod["devices" if command == ["plan"] else "shares"]]
        assert [each["memory_mib"] for each in devices] == ([] if want is None else [want])
        assert (note in result.stderr) if note else result.stderr == ""
    words = ["simulate", "manifests", *where, *options, "-f", "-", "-o", "json", "--policy", "first-fit"]
    simulated = json.loads(run(*words, given=manifest(f"aliyun.com/gpu-mem: {ask}")).stdout)["runs"][0]
    assert simulated["dropped"] == (want is None)


def test_the_unit_holds_for_the_pods_of_the_fleet_too() -> None:
    pending = yaml.safe_load(manifest("aliyun.com/gpu-mem: 4"))
    cluster = json.dumps({"kind": "List", "apiVersion": "v1", "items": [GPUSHARE, pending]})
    for options, want in (([], 4), (["--share-unit", "GiB"], 4096)):
        got = json.loads(run("plan", "--cluster", "-", *options, "-o", "json", given=cluster).stdout)
        assert got["assignments"][0]["devices"][0]["memory_mib"] == want


def test_folders_are_read_and_other_kinds_noted(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("nvidia.com/gpu: 1"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.yml").write_text("kind: Service\napiVersion: v1\nmetadata: {name: web}\n")
    (tmp_path / ".hidden.yaml").write_text("not: [yaml")
    (tmp_path / ".venv/lib").mkdir(parents=True)
    (tmp_path / ".venv/lib/c.yaml").write_text("not: [yaml")
    result = run("plan", "--gpus", "T4", "-f", str(tmp_path), "-o", "json")
    assert [each["pod"] for each in json.loads(result.stdout)["assignments"]] == ["default/a"]
    assert "Service web" in result.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("plan", "--gpus", "T4", "-f", str(empty)).exit_code == 2


def test_what_was_left_out_stands_in_the_json() -> None:
    text = "apiVersion: example.com/v1\nkind: New\nmetadata: {name: a}\nspec: {nvidia.com/gpu: 1}\n"
    result = run("plan", "--gpus", "T4", "-f", "-", "-o", "json", given=text)
    assert json.loads(result.stdout)["left_out"] == [
        {
            "object": "New a",
            "reason": "Tessera does not know this kind and reads no pod where it names these",
            "resources": ["nvidia.com/gpu"],
        }
    ]


def test_a_daemon_set_is_planned_on_the_nodes_there_are() -> None:
    text = (
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\n"
        "spec: {template: {spec: {containers: [{name: m, resources: {limits: {nvidia.com/gpu: 1}}}]}}}\n"
    )
    result = run("plan", "--gpus", "2xT4", "--gpus", "1xT4", "-f", "-", "-o", "json", given=text)
    assert [(each["pod"], each["node"]) for each in json.loads(result.stdout)["assignments"]] == [
        ("default/d-node-0", "node-0"),
        ("default/d-node-1", "node-1"),
    ]


def test_many_objects_without_pods_are_one_note_and_none_at_all_is_noted() -> None:
    services = "\n---\n".join(f"{{kind: Service, apiVersion: v1, metadata: {{name: s{i}}}}}" for i in range(5))
    result = run("plan", "--gpus", "T4", "-f", "-", given=services)
    want = "note: Service s0, Service s1, Service s2 and 2 more: not counted, runs no pods"
    assert result.stderr.splitlines() == [want]
    assert run("plan", "--gpus", "T4", "-f", "-", given="").stderr == "note: no workload in -\n"


def test_a_plan_of_nothing_says_how_manifests_are_given() -> None:
    result = run("plan", "--gpus", "T4")
    assert (result.exit_code, result.stderr) == (0, "note: no pending pods; pass manifests with -f\n")


def test_explain_breaks_no_word_and_cuts_nothing_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = EXAMPLES / "3-triton-on-one-a100"
    fleet = ("--cluster", str(folder / "balanced-time-sliced.yaml"), "-f", str(folder / "triton-sizes.yaml"))
    words = run("explain", "triton-large", *fleet).stdout.split()
    assert {"A100-40GB", "mig-time-slicing", "3g.20gb", "4992", "none", "exists"} <= set(words)


def test_running_pods_stay_where_they_are() -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2"}},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2"}},
    }
    running = yaml.safe_load(manifest("nvidia.com/gpu: 1", "old"))
    running["spec"]["nodeName"] = "n"
    running["status"] = {"phase": "Running"}
    cluster = json.dumps({"kind": "List", "apiVersion": "v1", "items": [node, running]})
    result = run(
        "plan", "--cluster", "-", "-f", str(EXAMPLES / "5-memory-shares/shares.yaml"), "-o", "json", given=cluster
    )
    got = json.loads(result.stdout)
    holders = [pod for layout in got["layouts"] for piece in layout["slices"] for pod in piece["pods"]]
    assert "default/old" in holders
    assert "default/old" not in {each["pod"] for each in got["assignments"]}


def test_a_pod_that_runs_already_is_not_planned_again(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("nvidia.com/gpu: 1"))
    running = yaml.safe_load(manifest("nvidia.com/gpu: 1"))
    running["spec"]["nodeName"] = "n"
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}}}
    cluster = json.dumps({"kind": "List", "apiVersion": "v1", "items": [node, running]})
    result = run("plan", "--cluster", "-", "-f", str(tmp_path / "a.yaml"), "-o", "json", given=cluster)
    assert json.loads(result.stdout)["summary"]["placed"] == 0
    assert "default/a is already in the fleet" in result.stderr


def test_a_node_both_in_the_fleet_and_in_short_form() -> None:
    result = run("plan", "--cluster", "-", "--gpus", "T4", given="nodes: [{name: node-0}]")
    assert result.exit_code == 2
    assert "node node-0" in result.stderr


def test_explain_tells_alike_nodes_once_and_no_more_than_a_screen_of_kinds() -> None:
    """Nodes with the same verdict are one line; past twenty kinds of verdict the nodes are counted."""
    alike = run("explain", "a", *(["--gpus", "2xT4"] * 3), "-f", "-", given=manifest("nvidia.com/gpu: 3")).stdout
    assert "node-0 and 2 more" in alike
    assert "a free GPU" in alike
    nodes = "\n".join(f"- {{name: n{i}, gpus: 2xT4, taints: ['k{i}:NoSchedule']}}" for i in range(25))
    fleet = f"kind: Fleet\nnodes:\n{nodes}\n---\n{manifest('nvidia.com/gpu: 1')}"
    many = run("explain", "a", "--cluster", "-", given=fleet).stdout
    assert "and 5 more nodes; -o json has all" in many


def test_explain() -> None:
    vllm = ("explain", "vllm", "--gpus", "8xH100-80GB", "-f", str(EXAMPLES / "2-vllm-replicas/vllm.yaml"))
    table = " ".join(run(*vllm).stdout.split())
    assert "3g.40gb" in table
    assert "16 placed (node-0 GPU 0-7), 0 pending" in table
    assert "Ways to serve 37 GiB with hardware isolation" in table
    (found,) = json.loads(run(*vllm, "-o", "json").stdout)
    assert len(found["placed"]) == 16
    wrong = run("explain", "vlm", *vllm[2:])
    assert wrong.exit_code == 2
    assert "Deployment/default/vllm" in wrong.stderr


def test_a_limit_that_is_over_soon_keeps_the_plan_and_claims_nothing(tmp_path: Path) -> None:
    """What no plan exceeds cannot be proved in a moment."""
    asks = ("nvidia.com/mig-1g.5gb: 1", "nvidia.com/mig-3g.20gb: 2", "tessera.dev/gpu-memory: 11", "nvidia.com/gpu: 1")
    documents = "---".join(manifest(f"{asks[number % 4]}, cpu: {1 + number % 3}", f"p{number}") for number in range(99))
    (tmp_path / "fleet.yaml").write_text(
        "nodes:" + "".join(f"\n- {{name: n{n}, cpu: 11, gpus: [{{model: A100-40GB, count: 3}}]}}" for n in range(9))
    )
    arguments = ("plan", "--cluster", str(tmp_path / "fleet.yaml"), "-f", "-")
    packed = json.loads(run(*arguments, "-o", "json", given=documents).stdout)["summary"]["placed"]
    late = (*arguments, "--exact", "--limit", "0.000001")
    summary = json.loads(run(*late, "-o", "json", given=documents).stdout)["summary"]
    table = " ".join(run(*late, given=documents).stdout.split())
    assert 0 < packed == summary["placed"] < summary["at_most"]
    assert not summary["optimal"]
    assert f"{packed} of 99 pods placed" in table
    assert f"not proved optimal: {packed} placed of at most {summary['at_most']}" in table


def test_the_limit_holds_for_the_smallest_fleet_too() -> None:
    """Of which it is not proved without time that the pods need three nodes."""
    documents = "---".join(manifest("nvidia.com/mig-3g.20gb: 1, cpu: 1", f"p{number}") for number in range(6))
    command = ("plan", "--fit", "--gpus", "A100-40GB", "-f", "-", "--exact", "-o", "json")
    proved, late = (
        json.loads(run(*command, "--limit", limit, given=documents).stdout)["fit"] for limit in ("60", "0.000001")
    )
    assert (proved["cost"], proved["optimal"], late["cost"]) == (3, True, 3)
    assert not late["optimal"]


def on_a_terminal(*arguments: str) -> tuple[str, str]:
    """Return what a command writes to standard output, and to standard error, which is a terminal."""
    near, far = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-c", "from tessera.cli import main; main()", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=far, env=environment, text=True) as process:
        os.close(far)
        seen = b""
        with contextlib.suppress(OSError):  # Linux' way to say that nobody writes any more
            while more := os.read(near, 1 << 16):
                seen += more
        os.close(near)
        assert process.stdout is not None
        output = process.stdout.read()
    assert process.returncode == 0
    return output, seen.decode()


def test_a_table_on_a_terminal_is_that_of_a_pipe() -> None:
    arguments = ("plan", "--gpus", "8xH100-80GB", "-f", JOB)
    output, _ = on_a_terminal(*arguments)
    piped = run(*arguments)
    assert piped.stderr == ""
    assert "56 of 60" in " ".join(output.split())


def test_what_sharing_saves_is_a_line_and_in_the_summary() -> None:
    common = ("plan", "--gpus", "8xH100-80GB", "-f", JOB)
    assert "8 GPUs instead of 56 without sharing (86 % fewer)\n" in run(*common).stdout
    assert json.loads(run(*common, "-o", "json").stdout)["summary"]["gpus_without_sharing"] == 56
    alone = run("plan", "--gpus", "T4", "-f", "-", given=manifest("nvidia.com/gpu: 1")).stdout
    assert "1 GPU, as many as without sharing\n" in alone
    assert "sharing" not in run("plan", "--gpus", "T4").stdout


def test_a_price_of_a_gpu_that_no_node_has_is_said() -> None:
    found = CliRunner().invoke(main, ["plan", "--gpus", "T4", "-f", JOB, "--price", "L4=1", "--price", "T4=1"])
    assert "note: --price L4: no node has this GPU\n" in found.stderr
    assert "--price T4" not in found.stderr


def test_prices_are_money_per_hour() -> None:
    common = ("plan", "--gpus", "9xH100-80GB", "--gpus", "T4", "-f", JOB, "--price", "h100-80gb=2.50")
    line = "22.50 per hour instead of 150.00 without sharing; all GPUs 22.50; no price given for T4"
    assert line in " ".join(run(*common).stdout.split())
    got = json.loads(run(*common, "-o", "json").stdout)
    assert got["cost"] == {"fleet": 22.5, "used": 22.5, "without_sharing": 150.0, "unpriced": ["T4"]}


@pytest.mark.parametrize(("gpus", "want"), [("8xH100-80GB", 6), ("9xH100-80GB", 0)])
def test_pending_pods_may_be_a_failure(gpus: str, want: int) -> None:
    arguments = ("plan", "--gpus", gpus, "-f", JOB)
    failing = run(*arguments, "--fail-pending", "-o", "yaml")
    assert (failing.exit_code, failing.stderr) == (want, "")
    assert len(yaml.safe_load(failing.stdout)["pending"]) == (4 if want else 0)
    assert run(*arguments).exit_code == 0


def test_the_smallest_fleet_is_found_and_planned() -> None:
    common = ("plan", "--fit", "--gpus", "8xH100-80GB", "--gpus", "H100-80GB", "-f", JOB)
    text = " ".join(run(*common).stdout.split())
    assert "Smallest fleet: 1 \u00d7 (8xH100-80GB) + 1 \u00d7 (1xH100-80GB), 9 GPUs; proved smallest" in text
    assert "60 of 60 pods placed" in text
    got = json.loads(run(*common, "-o", "json").stdout)
    nodes = [{"gpus": "8xH100-80GB", "count": 1}, {"gpus": "1xH100-80GB", "count": 1}]
    assert got["fit"] == {"nodes": nodes, "cost": 9.0, "at_least": 9.0, "optimal": True}
    dear = run(*common, "--price", "H100-80GB=2").stdout
    assert "18.00 per hour; proved cheapest" in " ".join(dear.split())


def test_a_fleet_that_is_not_proved_says_what_is() -> None:
    triples = "---".join(manifest("nvidia.com/gpu: 3", f"p{n}") for n in range(4))
    mixed = f"{triples}---{manifest('nvidia.com/gpu: 1', 'one')}"
    text = " ".join(
        run(
            "plan", "--fit", "--gpus", "5xT4", "-f", "-", given=f"{mixed}---{manifest('nvidia.com/gpu: 2', 'two')}"
        ).stdout.split()
    )
    assert "4 \u00d7 (5xT4), 20 GPUs" in text
    none = run("plan", "--fit", "--gpus", "T4", "-f", "-", given=triples).stdout
    assert "No fleet: no pod fits on a node of these types" in none


def test_nodes_that_differ_only_by_name_are_one_type(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("nodes: [{name: a, count: 3, cpu: 2, gpus: 2xT4}, {name: plain}]")
    pods = "---".join(manifest("nvidia.com/gpu: 1, cpu: 2", f"p{n}") for n in range(3))
    got = json.loads(run("plan", "--fit", "--cluster", str(fleet), "-f", "-", "-o", "json", given=pods).stdout)
    assert got["fit"]["nodes"] == [{"gpus": "2xT4", "count": 3}]
    assert {each["node"] for each in got["assignments"]} == {"a-0", "a-1", "a-2"}


def test_old_spellings_and_addresses() -> None:
    assert run("plan", "--fleet", "-", given="nodes: [{name: a, gpus: T4}]").exit_code == 0
    told = run("plan", "--gpus", "T4", "-f", "https://example.com/a.yaml").stderr
    assert "curl -fsSL https://example.com/a.yaml | tessera" in told
    assert "curl -fsSL HTTPS://a/b | tessera" in run("plan", "--gpus", "T4", "-f", "HTTPS://a/b").stderr
    for address in ("s3://bucket/a.yaml", "oci://registry/chart", "file:///etc/hosts"):
        assert "nothing is fetched: what fetches it | tessera ... -f -" in run("plan", "--cluster", address).stderr


def test_a_name_that_no_file_can_have_is_an_error_of_the_command_line() -> None:
    result = run("plan", "--gpus", "T4", "-f", "a" * 300)
    assert result.exit_code == 2
    assert "File name too long: name a file that can be read" in result.stderr


@pytest.mark.parametrize("offered", ["nvidia.com/gpu: 1", "aliyun.com/gpu-mem: 8"])
def test_a_node_whose_count_of_gpus_is_no_number_is_left_out_alone(offered: str, tmp_path: Path) -> None:
    nodes = (
        f"kind: Node\nmetadata:\n  name: {name}\n"
        f"  labels: {{nvidia.com/gpu.product: Tesla-T4, nvidia.com/gpu.count: {count}}}\n"
        f"status: {{allocatable: {{{offered}}}}}\n"
        for name, count in (("good", "'1'"), ("odd", "many"))
    )
    (tmp_path / "nodes.yaml").write_text("---\n".join(nodes))
    given = manifest(offered.replace(": 8", ": 2"))
    result = run("plan", "--cluster", str(tmp_path), "-f", "-", "-o", "json", given=given)
    assert result.exit_code == 0, result.stderr
    got = json.loads(result.stdout)
    assert ([each["node"] for each in got["assignments"]], got["skipped"]) == (["good"], ["odd"])
    assert "'many' is not a Kubernetes quantity" in got["warnings"][0]


GPU_OF_HAMI = {"id": "GPU-0", "count": 10, "devmem": 15360, "devcore": 100, "type": "Tesla T4", "health": True}
EMPTY = {
    "tessera.dev/assignment": ("[]", ""),
    "hami.io/vgpu-devices-allocated": (
        ";",
        f"annotations: {{hami.io/node-nvidia-register: '{json.dumps([GPU_OF_HAMI])}'}}",
    ),
}


@pytest.mark.parametrize("key", EMPTY)
def test_a_running_pod_whose_record_names_no_device_counts_by_its_request(key: str, tmp_path: Path) -> None:
    value, registered = EMPTY[key]
    (tmp_path / "nodes.yaml").write_text(
        f"kind: Node\nmetadata:\n  name: n\n  labels: {{nvidia.com/gpu.product: Tesla-T4}}\n  {registered}\n"
        "status: {allocatable: {nvidia.com/gpu: 1}}\n---\n"
        f"kind: Pod\nmetadata: {{name: runs, namespace: default, annotations: {{{key}: '{value}'}}}}\n"
        "spec: {nodeName: n, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}\n"
        "status: {phase: Running}\n"
    )
    given = manifest("nvidia.com/gpu: 1")
    got = json.loads(run("plan", "--cluster", str(tmp_path), "-f", "-", "-o", "json", given=given).stdout)
    assert (got["summary"]["placed"], got["summary"]["gpus_used"]) == (0, 1)


def test_a_quantity_that_is_missing_says_what_to_write() -> None:
    told = run("plan", "--gpus", "T4", "-f", "-", given=manifest("nvidia.com/gpu: null")).stderr
    assert "it is missing: write a Kubernetes quantity: a number with an optional suffix" in told


def test_wide_lines_are_not_folded() -> None:
    text = run("plan", "--gpus", "8xH100-80GB", "-f", JOB, "-o", "wide").stdout
    assert "embed-58" in next(line for line in text.splitlines() if "embed-56" in line)
    assert max(map(len, text.splitlines())) < 400


def test_a_cached_model_is_looked_for_on_the_nodes_that_say_which_they_have(tmp_path: Path) -> None:
    """In a saved cluster; a model that no node has is the ModelCache's to fetch, and no GPU is blamed."""
    amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}},
            "status": {"allocatable": {**amounts, **models}},
        }
        for name, models in (("bare", {"models.tessera.dev/llama": "0"}), ("warm", {"models.tessera.dev/llama": "256"}))
    ]
    cluster = json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes})
    text = manifest("nvidia.com/gpu: 1, models.tessera.dev/llama: 1")
    other = manifest("nvidia.com/gpu: 1, models.tessera.dev/other: 1", "b")
    path = tmp_path / "pods.yaml"
    path.write_text(f"{text}---\n{other}")
    read = json.loads(run("plan", "--cluster", "-", "-f", str(path), "-o", "json", given=cluster).stdout)
    assumed = run("plan", "--gpus", "2xA100-40GB", "-f", str(path))
    assert [(each["pod"], each["node"]) for each in read["assignments"]] == [("default/a", "warm")]
    (pending,) = read["pending"]
    assert "the node does not offer models.tessera.dev/other" in pending["reason"]
    assert "2 of 2 pods placed" in assumed.stdout
    assert "models.tessera.dev/llama, models.tessera.dev/other: presumed on each node" in assumed.stderr
