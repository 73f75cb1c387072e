"""What is installed: the base install is the planner, and says what the rest needs; the package's page stands alone."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tessera.cli import _OF_CLUSTER, COMMANDS, EXIT_CODES
from tessera.errors import Unsupported

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
JOB = str(ROOT / "examples/1-job-of-60-slices/job.yaml")
MODULES = {
    "google-re2": "re2",
    "grpcio": "grpc",
    "nvidia-ml-py": "pynvml",
    "protobuf": "google",
}
"""What packages are imported as, where that is not their name."""
BASE = ("plan", "explain", "simulate", "profiles", "sim-gpus", "completion", "manifests", "disks", "render", "size")
"""The planner, and what else asks neither a cluster nor a GPU's driver."""


def without_cluster(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process where the packages of the extra `cluster` cannot be imported."""
    lacks = f"import sys; sys.modules.update(dict.fromkeys({sorted(_OF_CLUSTER)!r}))"
    program = [sys.executable, "-c", f"{lacks}; from tessera.cli import main; main()", *arguments]
    return subprocess.run(program, check=False, capture_output=True, text=True, timeout=120)


def test_the_extra_brings_what_the_base_install_lacks() -> None:
    names = {re.split(r"[^\w-]", each)[0] for each in PROJECT["project"]["optional-dependencies"]["cluster"]}
    assert {MODULES.get(name, name) for name in names} == _OF_CLUSTER
    assert names.isdisjoint({re.split(r"[^\w-]", each)[0] for each in PROJECT["project"]["dependencies"]})


@pytest.mark.parametrize("command", BASE)
def test_a_command_of_the_base_install_needs_no_more(command: str) -> None:
    assert without_cluster(command, "--help").returncode == 0


def test_the_planner_plans() -> None:
    planned = without_cluster("plan", "--gpus", "2x(8xH100-80GB)", "-f", JOB, "--fail-pending")
    assert (planned.returncode, planned.stderr) == (0, "")
    explained = without_cluster("explain", "embed", "--gpus", "8xH100-80GB", "-f", JOB)
    assert explained.returncode == 0, explained.stderr


@pytest.mark.parametrize("command", [*sorted(COMMANDS.keys() - set(BASE)), "explain pod a"])
def test_another_command_says_what_it_needs(command: str) -> None:
    ended = without_cluster(*command.split(), *(() if " " in command else ("--help",)))
    assert ended.returncode == EXIT_CODES[Unsupported], ended.stderr
    extra = "models" if command == "models" else "cluster"
    assert f"pip install '.[{extra}]'" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_page_of_the_package_leads_nowhere_that_only_a_checkout_has() -> None:
    page = (ROOT / PROJECT["project"]["readme"]).read_text()
    assert re.findall(r"\]\((?!https://)|(?:src|href)=", page) == []


def test_what_the_wheel_carries_beside_the_package_is_there() -> None:
    for source in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]:
        assert any((ROOT / source).iterdir())


def test_the_dockerfile_is_given_what_the_wheel_is_made_of() -> None:
    """The image is built of what .dockerignore lets in, and the wheel is built in there."""
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    of_the_wheel = (project["readme"], *project["license-files"], *wheel["packages"], *wheel["force-include"])
    copied = re.findall(r"^COPY (?!--)([^.].*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    let_in = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    needed = {*of_the_wheel, *(path for paths in copied for path in paths.split())}
    assert [
        path for path in sorted(needed) if not any(path == each or path.startswith(f"{each}/") for each in let_in)
    ] == []
    assert [each for each in let_in if not (ROOT / each).exists()] == []


def test_the_workflow_runs_what_a_change_has_to_pass_with_pinned_actions() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    assert "run: .ci/run\n" in text
    assert [used for used in re.findall(r"uses: (\S+)", text) if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used)] == []
    assert "permissions:\n  contents: read\n" in text
