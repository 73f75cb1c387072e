"""`tessera run --dry-run`: what it prints for options, without a cluster."""

from typing import Any

import yaml
from click.testing import CliRunner, Result

from tessera.cli import main


def dry_run(*options: str) -> Result:
    call = ("run", "--dry-run", "--kubeconfig", "nowhere", *options)
    return CliRunner().invoke(main, call)


def dry_pod(*options: str) -> Any:
    """Return the spec of the pod that would be submitted."""
    found = dry_run("--image", "a", *options)
    assert found.exit_code == 0, found.output
    return [*yaml.safe_load_all(found.stdout)][-1]["spec"]["template"]["spec"]
