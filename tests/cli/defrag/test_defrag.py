"""`tessera defrag` over saved clusters: what is proposed, asked for, refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from builders.evictable import budget, owned
from builders.kubeobjects import Object, gpu, gpunode, kubectl, mig_share, node, pod, share
from tessera.cli import main
from tessera.core.gpu.sharing import Mode

UNITS = {"tessera.dev/gpu-memory": "80"}
WHOLE = {"tessera.dev/isolation": "hardware"}
NO_BUDGET = "note: the file has no PodDisruptionBudgets; if the cluster has any, add pdb to\n`kubectl get`\n"
NODES = [node("a", UNITS), gpunode("a", gpu(0), gpu(1))]
HALVES = [
    *NODES,
    owned("web-1", share(0, 10240, Mode.MPS)),
    owned("web-2", share(1, 10240, Mode.MPS)),
]
BIG = pod("big", {"tessera.dev/gpu-memory": 40}, node=None, annotations=WHOLE)
SLICES = [*NODES, owned("web-1", mig_share(0, "1g.5gb", 0)), owned("web-2", mig_share(1, "1g.5gb", 0))]


def run(objects: list[Object], *arguments: str, columns: int = 140) -> Result:
    return CliRunner().invoke(
        main, ["defrag", "--cluster", "-", *arguments], kubectl(*objects), env={"COLUMNS": str(columns)}
    )


def words(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def test_one_move_for_the_pod_that_waits() -> None:
    got = run([*HALVES, BIG])
    text = words(got)
    for want in (
        "ns/web-1 a 10 GiB of GPU 0 (MPS) a 10 GiB of GPU 1 (MPS)",
        "ns/big 40 GiB with hardware isolation a the whole GPU 0",
        "1 move, 1 pod placed, 0 pending; fewer moves are not enough",
    ):
        assert want in text
    assert got.stderr == NO_BUDGET


def test_a_slice_for_a_pod_that_is_not_there_yet() -> None:
    text = words(run(SLICES, "--resource", "nvidia.com/mig-7g.40gb"))
    assert "ns/web-1 a 1g.5gb at 0 of GPU 0 a 3g.20gb at 4 of GPU 1" in text
    assert "default/asked-0 nvidia.com/mig-7g.40gb a 7g.40gb at 0 of GPU 0" in text


def test_what_fits_needs_no_move() -> None:
    text = words(run(HALVES, "--resource", "tessera.dev/gpu-memory=20", "--count", "2"))
    assert "Pods that fit without a move" in text
    assert text.endswith("0 moves, 2 pods placed, 0 pending")


def test_a_budget_that_allows_nothing_keeps_pods_where_they_are() -> None:
    got = run([*HALVES, BIG, budget(0)])
    assert "ns/web-1 would have to move, and PodDisruptionBudget web allows no disruption now" in words(got)
    assert got.stderr == ""


def test_a_budget_that_allows_one_is_reported() -> None:
    assert "GPU 1 (MPS) web Pods that fit then" in words(run([*HALVES, BIG, budget(1)]))


def test_json_has_moves_places_and_what_was_asked() -> None:
    got = json.loads(run([*HALVES, BIG], "-o", "json").stdout)
    assert got["asked"][0]["pod"] == "ns/big"
    assert got["executed"] is False
    move = got["proposal"]["moves"][0]
    assert (move["pod"], move["owner"]) == ("ns/web-1", "ReplicaSet/ns/web")
    assert (move["frees"]["shares"][0]["gpu"], move["fits"]["shares"][0]["gpu"]) == (0, 1)
    assert got["proposal"]["placed"][0]["place"]["node"] == "a"


def test_a_manifest_that_is_not_applied_yet(tmp_path: Path) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(BIG | {"metadata": {"name": "new", "annotations": WHOLE}}))
    assert "default/new 40 GiB with hardware isolation a the whole GPU 0" in words(run(HALVES, "-f", str(file)))


def test_one_pod_of_those_that_wait() -> None:
    other = pod("other", {"tessera.dev/gpu-memory": 1}, node=None)
    assert "1 pod placed" in words(run([*HALVES, BIG, other], "--pod", "ns/other"))


def test_pods_of_a_higher_priority_stay() -> None:
    high = [each | {"spec": each["spec"] | {"priority": 5}} if each["kind"] == "Pod" else each for each in HALVES]
    ask = ("--resource", "nvidia.com/gpu")
    assert "its priority 5 is above 0" in words(run(high, *ask))
    assert "1 move" in words(run(high, *ask, "--priority", "5"))


def test_many_pods_without_a_place_are_reported_in_short() -> None:
    text = words(run(HALVES, "--resource", "tessera.dev/gpu-memory=50", "--count", "22"))
    assert "and 2 more pods; -o json has all" in text
    assert "it fits no node, even an empty one" in text


# Keyed by a sentence: arguments; desired are words of the error.
REFUSED = {
    "nothing is asked for": ([], "cluster: no pending pod requests GPUs: give -f, --pod or --resource"),
    "no such pod": (["--pod", "ns/none"], "pod ns/none: no pending pod has this namespace and name"),
    "a resource without amount": (["--resource", "nvidia.com/gpu="], "--resource: nvidia.com/gpu="),
    "an amount that is not a number": (
        ["--resource", "nvidia.com/gpu=x"],
        "error: --resource nvidia.com/gpu=x: 'x' is",
    ),
    "a name that is none": (["--resource", "foo=1"], "error: --resource foo=1: 'foo' is not a resource name: use cpu,"),
    "a resource that is no GPU": (
        ["--resource", "memory=1Gi"],
        "--resource: 'memory=1Gi' requests no GPU: give nvidia.com/gpu=1",
    ),
    "none of a resource": (["--resource", "nvidia.com/gpu=0"], "--resource: 'nvidia.com/gpu=0' requests no GPU: give"),
    "two ways to ask": (["--resource", "nvidia.com/gpu", "--pod", "a/b"], "with --resource: leave out"),
    "isolation of nothing": (["--isolation", "none"], "--isolation: it has no effect"),
    "execution on a file": (["--execute"], "--execute: it has no effect with"),
    "a deadline for nothing": (["--deadline-s", "5"], "--deadline-s: it has no effect"),
    "a manifest that is not there": (["--for", "none.yaml"], "none.yaml: No such file"),
}


@pytest.mark.parametrize(("arguments", "want"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(arguments: list[str], want: str) -> None:
    got = run(HALVES, *arguments)
    assert got.exit_code == 2
    assert want in got.stderr


def test_a_manifest_without_gpus(tmp_path: Path) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod("plain", node=None)))
    assert "a workload with GPU limits" in run(HALVES, "-f", str(file)).stderr


def test_dry_run_and_execute_exclude_each_other() -> None:
    got = CliRunner().invoke(main, ["defrag", "--dry-run", "--execute"])
    assert got.exit_code == 2
    assert "--execute: it has no effect with" in got.stderr
