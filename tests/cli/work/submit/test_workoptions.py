"""The Job that the options of `tessera run` make, and options that make no sense."""

import base64
import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from harness.dryruns import dry_pod, dry_run
from tessera.cli import main
from tessera.cli.work.run import run
from tessera.core.workload.units import quantity
from tessera.errors import InvalidInput


def container(*options: str) -> Any:
    found = dry_run("--image", "r.example/team/Py_Torch:2@sha256:1", *options)
    assert found.exit_code == 0, found.output
    job = yaml.safe_load(found.stdout)
    assert job["metadata"]["generateName"] == "py-torch-"
    assert "no forecast: " in found.stderr
    return job["spec"]["template"]["spec"]["containers"][0]


ASKS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "an amount": (("--gpu-memory", "10"), {"tessera.dev/gpu-memory": "10"}),
    "more of it": (
        ("--gpu-memory", "10", "--gpu-compute", "30", "--gpus", "2"),
        {"tessera.dev/gpu-memory": "10", "tessera.dev/gpu-compute": "30", "tessera.dev/gpu-count": "2"},
    ),
    "whole GPUs": (("--gpus", "2"), {"nvidia.com/gpu": "2"}),
    "a slice": (("--slice", "1g.10gb+me"), {"nvidia.com/mig-1g.10gb.me": "1"}),
    "a slice by another driver's name": (("--slice", "3G.39gb"), {"nvidia.com/mig-3g.39gb": "1"}),
    "quantities as Kubernetes reads them": (("--cpu", "1e1", "--memory", "2e9"), {"cpu": "1e1", "memory": "2e9"}),
    "models": (("--model", "a", "--model", "b"), {"models.tessera.dev/a": "1", "models.tessera.dev/b": "1"}),
    "more than a GPU": (("--cpu", "4", "--memory", "16Gi"), {"cpu": "4", "memory": "16Gi"}),
}


@pytest.mark.parametrize("case", ASKS)
def test_options_are_limits(case: str) -> None:
    options, want = ASKS[case]
    assert container(*options)["resources"]["limits"] == want


@pytest.mark.parametrize("amount", [("--gpu-memory", "10"), ("--gpus", "1"), ("--slice", "1g.10gb")])
def test_gpu_models_are_an_annotation_that_tesseras_scheduler_reads(amount: tuple[str, ...]) -> None:
    found = dry_run("--image", "a", *amount, "--gpu-model", "H100-80GB", "--gpu-model", "nvidia-a100-80gb")
    assert found.exit_code == 0, found.output
    template = yaml.safe_load(found.stdout)["spec"]["template"]
    assert template["metadata"]["annotations"]["tessera.dev/gpu-model"] == "H100-80GB, nvidia-a100-80gb"
    assert template["spec"]["schedulerName"] == "tessera-scheduler"


ON_GPU_NODES = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (("--gpu-memory", "10"), ON_GPU_NODES),
        (("--gpus", "1"), ON_GPU_NODES),
        (("--slice", "1g.10gb"), ON_GPU_NODES),
        (("--model", "a", "--memory", "1Gi"), []),
    ],
)
def test_who_requests_a_gpu_tolerates_the_taint_of_gpu_nodes(options: tuple[str, ...], want: list[Any]) -> None:
    assert dry_pod(*options).get("tolerations", []) == want


TAINTED = Path(__file__).parents[4] / "examples/1-job-of-60-slices/gke-node.yaml"


def test_the_taint_of_a_cloud_s_gpu_nodes_keeps_no_job_off(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(dry_run("--image", "a", "--name", "j", "--gpus", "1").stdout)
    found = CliRunner().invoke(main, ("plan", "--cluster", str(TAINTED), "-f", str(job)))
    assert found.exit_code == 0, found.output
    assert "does not tolerate" not in found.output


def test_a_command_its_environment_and_secrets() -> None:
    found = container("--env", "A=b=c", "--env-secret", "TOKEN=hub/key", "--", "python", "-c", "print(1)", "--image")
    assert found["command"] == ["python", "-c", "print(1)", "--image"]
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "key"}}}
    assert found["env"] == [{"name": "A", "value": "b=c"}, secret]


def test_what_follows_the_first_word_is_the_commands() -> None:
    found = container("python", "train.py", "--model", "llama", "-c", "--", "-n", "x")
    assert found["command"] == ["python", "train.py", "--model", "llama", "-c", "--", "-n", "x"]
    assert "resources" not in found


def test_a_user_is_that_of_all_processes() -> None:
    def pod(*options: str) -> Any:
        return yaml.safe_load(dry_run("--image", "a", *options).stdout)["spec"]["template"]["spec"]

    assert pod("--user", "1000")["securityContext"]["runAsUser"] == 1000
    assert "runAsUser" not in pod()["securityContext"]
    assert dry_run("--image", "a", "--user", "0").exit_code == 2


def test_options_that_contradict_each_other_are_refused_before_a_cluster_is_looked_for() -> None:
    call = ("run", "--kubeconfig", "nowhere", "--image", "a", "--slice", "1g.10gb", "--gpu-memory", "10")
    found = CliRunner().invoke(main, call)
    assert (found.exit_code, "--slice and --gpu-memory: both: give one of them" in found.stderr) == (2, True), (
        found.stderr
    )


NO_CLUSTER_NEEDED = {
    "a GPU model without a GPU": ("--gpu-model=H100-80GB",),
    "no such GPU model": ("--gpus=1", "--gpu-model=H200-1"),
    "no variable": ("--env=A",),
    "no name of a queue": ("--queue=A B",),
    "a command that is no text": ("--", "\udcff"),
    "no folder of code": ("--code=/nowhere/at/all",),
}


@pytest.mark.parametrize("case", NO_CLUSTER_NEEDED)
def test_a_wrong_option_is_said_before_a_cluster_is_looked_for(case: str) -> None:
    call = ("run", "--kubeconfig", "nowhere", "--image", "a", *NO_CLUSTER_NEEDED[case])
    found = CliRunner().invoke(main, call)
    assert (found.exit_code, "kubeconfig" in found.stderr) == (2, False), found.stderr


@pytest.mark.parametrize("option", ["--gpu-compute=30", "--isolation=hardware"])
def test_an_option_without_effect_is_refused_before_a_cluster_is_looked_for(option: str) -> None:
    found = CliRunner().invoke(main, ("run", "--kubeconfig", "nowhere", "--image", "a", "--slice", "1g.10gb", option))
    assert found.exit_code == 2
    assert found.stderr.startswith(f"error: {option.partition('=')[0]}: ")
    assert "give --gpu-memory as well" in found.stderr


REFUSED = {
    "no image": ((), "--image or --environment: neither is given"),
    "two images": (("--image", "a", "-e", "b"), "--image and --environment: both"),
    "no variable": (("--image", "a", "--env", "A"), "NAME=VALUE"),
    "no key of a secret": (("--image", "a", "--env-secret", "A=b"), "NAME=SECRET/KEY"),
    "no name of an image": (("--image", "a b"), "the name of an image"),
    "no name": (("--image", "a", "--name", "Big One"), "--name: 'Big One' is not a name of at most 63"),
    "no variable's name": (("--image", "a", "--env", "A B=1"), "--env: 'A B'"),
    "no Secret's name": (("--image", "a", "--env-secret", "A=../b/c"), "--env-secret: '..'"),
    "no model's name": (("--image", "a", "--model", "../x"), "--model: '../x'"),
    "no profile": (
        ("--image", "a", "--slice", "1g"),
        "--slice: '1g' is not a MIG profile that some GPU model has, such as 1g.10gb",
    ),
    "a resource as profile": (
        ("--image", "a", "--slice", "mig-1g.10gb"),
        "--slice: 'mig-1g.10gb' is not a MIG profile",
    ),
    "no amount": (("--image", "a", "--cpu", "lots"), "--cpu: 'lots' is not a Kubernetes quantity"),
    "memory as CPUs": (("--image", "a", "--cpu", "16Gi"), "--cpu: '16Gi' is not a number of CPUs: write"),
    "no CPU": (("--image", "a", "--cpu", "0"), "--cpu: '0' is not a number of CPUs: write"),
    "bytes of memory": (("--image", "a", "--memory", "16"), "--memory: 16 is 16 bytes: write 16Gi"),
    "thousandths of bytes": (("--image", "a", "--memory", "500m"), "--memory: 500m is 0.5 bytes: write an amount such"),
    "less than no memory": (("--image", "a", "--memory", "-1Gi"), "--memory: -1Gi is -1073741824 bytes: write"),
    "more GPU memory than a number has": (("--image", "a", "--gpu-memory", "1e99"), "2^63 - 1"),
    "words of GPU memory": (
        ("--image", "a", "--gpu-memory", "much"),
        "--gpu-memory: 'much' is not a whole number: try",
    ),
    "no namespace": (("--image", "a", "-n", "a/../b"), "--namespace: 'a/../b'"),
    "no claim": (("--image", "a", "--data", "pvc/"), "--data: ''"),
    "data twice": (("--image", "a", "--data", "x-y", "--data", "pvc/x.y"), "two would be one variable"),
    "no folder": (("--image", "a", "--secret", "hub:etc"), "a folder of the container"),
    "the root as folder": (("--image", "a", "--secret", "hub:/"), "a folder of the container"),
    "a folder above": (("--image", "a", "--secret", "hub:/a/../b"), "a folder of the container"),
    "a variable that is no text": (("--image", "a", "--env", "A=\udcff"), "is not UTF-8: bring bytes along in a file"),
    "a command that is no text": (("--image", "a", "--", "echo", "\udcff"), "the command: '\\udcff' is not UTF-8"),
    "a variable twice": (
        ("--image", "a", "--env", "A=1", "--env-secret", "A=hub/key"),
        "variable A: it is set twice",
    ),
    "the variable of a notebook's token": (
        ("--image", "a", "--env", "JUPYTER_TOKEN=1"),
        "variable JUPYTER_TOKEN: tessera notebook sets it",
    ),
    "the same from a Secret": (
        ("--image", "a", "--env-secret", "JUPYTER_TOKEN=hub/token"),
        "variable JUPYTER_TOKEN: tessera notebook sets it",
    ),
    "two Secrets at one folder": (
        ("--image", "a", "--secret", "hub:/a", "--secret", "other://a/."),
        "--secret other:/a: '/a' is already the folder of --secret hub:/a",
    ),
    "a Secret where the code is": (
        ("--image", "a", "--secret", "hub://code/", "--code", "{here}"),
        "the folder of --code",
    ),
    "a Secret where a claim is": (("--image", "a", "--secret", "s:/data/x", "--data", "pvc/x"), "of --data pvc/x"),
    "a Secret where a model is": (("--image", "a", "--secret", "s:/models/x", "--model", "x"), "of ModelCache x"),
    "two ways": (("--image", "a", "--slice", "1g.5gb", "--gpus", "1"), "--slice and --gpus: both: give one of them"),
    "more GPUs than a server has": (
        ("--image", "a", "--gpu-memory", "5", "--gpus", "70"),
        "the Job: spec.containers[0].resources.limits[tessera.dev/gpu-count]: '70' is not at most 64 GPUs",
    ),
    "more whole GPUs than a number has": (("--image", "a", "--gpus", "1" + "0" * 30), "2^63 - 1"),
    "memory without end": (("--image", "a", "--gpu-memory", "1" + "0" * 30), "2^63 - 1"),
    "more host memory than a number has": (("--image", "a", "--memory", "9" * 20 + "Ei"), "2^63 - 1"),
    "a profile of no GPU": (
        ("--image", "a", "--slice", "1g.11gb"),
        "--slice: '1g.11gb' is not a MIG profile that some GPU model has",
    ),
    "a user that Linux does not have": (
        ("--image", "a", "--user", str(1 << 31)),
        "--user: 2147483648 is not at least 1 and at most 2147483647",
    ),
    "isolation of nothing": (("--image", "a", "--isolation", "driver"), "give --gpu-memory as well"),
    "a GPU model of nothing": (("--image", "a", "--gpu-model", "T4"), "--gpu-model: the pod requests no GPU"),
    "no such GPU model": (("--image", "a", "--gpus", "1", "--gpu-model", "H101"), "--gpu-model: 'H101' is not"),
    "an empty GPU model": (("--image", "a", "--gpus", "1", "--gpu-model", ""), "--gpu-model: '' is not"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_make_no_sense_are_refused(case: str) -> None:
    options, words = REFUSED[case]
    found = dry_run(*(each.replace("{here}", str(Path(__file__).parent)) for each in options))
    assert (found.exit_code, words in found.stderr) == (2, True), found.stderr


PARTS_OF_A_GIB = {
    "500MiB": 1,
    "500M": 1,
    "0.5": 1,
    ".1gb": 1,
    "40000Mi": 40,
    "10GB": 10,
    "80 gb": 75,
    "10.5": 11,
    "15e-1": None,
    "1TB": 932,
}
"""What to write for them; None where that is not known."""


@pytest.mark.parametrize("amount", PARTS_OF_A_GIB)
def test_gpu_memory_that_is_no_whole_number_of_gib_is_refused_with_the_next_that_is(amount: str) -> None:
    found = dry_run("--image", "a", "--gpu-memory", amount)
    want = f"--gpu-memory: '{amount}' is not a whole number"
    if (fix := PARTS_OF_A_GIB[amount]) is not None:
        want += f" of GiB: write {fix}\n"
    assert (found.exit_code, want in found.stderr, "write" in found.stderr) == (2, True, fix is not None), found.stderr


@pytest.mark.parametrize("amount", ["0", "0Gi", "0.0", "0e1"])
def test_no_gpu_memory_is_refused(amount: str) -> None:
    found = dry_run("--image", "a", "--gpu-memory", amount)
    assert (found.exit_code, "--gpu-memory: 0 is not at least 1" in found.stderr) == (2, True), found.stderr


@pytest.mark.parametrize(
    ("amount", "want"), [("16Gi", "16"), ("16 GiB", "16"), ("40960Mi", "40"), ("1e1", "10"), ("1Ti", "1024")]
)
def test_gpu_memory_may_have_its_unit(amount: str, want: str) -> None:
    assert container("--gpu-memory", amount)["resources"]["limits"] == {"tessera.dev/gpu-memory": want}


@given(st.integers(1, 1 << 30), st.sampled_from(("M", "G", "Mi", "Gi", "")), st.booleans())
def test_gpu_memory_in_gib_is_that_of_its_quantity(number: int, unit: str, byte: bool) -> None:
    bytes_ = quantity(f"{number}{unit or 'Gi'}", "amount")
    kind = next(each.type for each in run.params if each.name == "gpu_memory")
    try:
        found = kind.convert(f"{number}{unit}{'B' if byte and unit else ''}", None, None)
    except InvalidInput as error:
        found = int(error.hint.removeprefix("write "))
        assert (found - 1) << 30 < bytes_ < found << 30
    else:
        assert found << 30 == bytes_


EMPTY = (
    "image",
    "environment",
    "name",
    "namespace",
    "kubeconfig",
    "context",
    "code",
    "slice",
    "cpu",
    "memory",
    "queue",
)


@pytest.mark.parametrize("option", EMPTY)
def test_an_empty_value_as_of_an_unset_variable_is_refused(option: str) -> None:
    found = dry_run("--image", "a", f"--{option}", "")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"error: --{option}: its value is empty: give one")


def test_a_folder_of_code_is_a_secret_and_the_folder_where_the_command_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    found = dry_run("--image", "a", "--cpu", "2", "--gpu-memory", "10", "--code", str(tmp_path))
    secret, job = yaml.safe_load_all(found.stdout)
    content = gzip.decompress(base64.b64decode(secret["data"]["code.tar.gz"]))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["train.py"]
    pod = job["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"]["secretName"] == secret["metadata"]["name"]
    assert pod["initContainers"][0]["resources"]["limits"] == {"cpu": "2"}
    assert pod["containers"][0]["workingDir"] == pod["containers"][0]["volumeMounts"][0]["mountPath"]
    assert pod["initContainers"][0]["command"][-1] == pod["containers"][0]["workingDir"]


def test_credentials_in_a_folder_of_code_are_said(tmp_path: Path) -> None:
    for name in ("train.py", ".env"):
        (tmp_path / name).write_text("TOKEN=1")
    found = dry_run("--image", "a", "--code", str(tmp_path))
    assert "left out, as they may contain credentials: '.env'" in found.stderr
