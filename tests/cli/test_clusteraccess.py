"""Which namespace a command means, and how little it imports to reach a cluster."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tessera.cli import main

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: mine
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: mine, context: {cluster: c, user: u, namespace: team-a}}
- {name: plain, context: {cluster: c, user: u}}
"""


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(KUBECONFIG)
    for more, want in (((), "team-a"), (("--context", "plain"), "default"), (("-n", "team-b"), "team-b")):
        found = CliRunner().invoke(main, ("run", "--dry-run", "--kubeconfig", str(config), "--image", "a", *more))
        assert yaml.safe_load(found.stdout)["metadata"]["namespace"] == want


@pytest.mark.parametrize("command", ["run", "notebook", "jobs", "attach", "logs", "stop", "environments"])
def test_what_submits_and_follows_starts_without_the_planner(command: str) -> None:
    """Arrays and planner are most of the time of a start: who runs a command does not wait for them."""
    tables = () if command in {"jobs", "environments"} else ("rich",)
    slow = ("numpy", "tessera.core.packing", "pathspec", "tarfile", *tables)
    script = f"import sys, tessera.cli.work.{command}; print([each for each in {slow} if each in sys.modules])"
    said = subprocess.run((sys.executable, "-c", script), check=True, capture_output=True, text=True).stdout
    assert said == "[]\n"
