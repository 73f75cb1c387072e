"""Shell completion: scripts, GPU models, configurations; through the shell's own protocol."""

import pytest
from click.testing import CliRunner

from tessera.cli import main

# Keyed by a sentence: what is typed, what is among the proposals, what is not.
CASES: dict[str, tuple[str, str, str]] = {
    "a command": ("ins", "inspect", "plan"),
    "a GPU model": ("profiles h100-8", "H100-80GB", "H100-94GB"),
    "a node": ("plan --gpus 8xH1", "8xH100-80GB", "8xA100-40GB"),
    "a model alone": ("explain a --gpus L4", "L40S", "T4"),
    "several nodes": ("plan --gpus 4x(8xT", "4x(8xT4)", "4x(8xL4)"),
    "a price": ("plan --price T", "T4=", "L4="),
    "GPUs to simulate": ("sim-gpus create --gpus 2xA1", "2xA100-40GB", "2xT4"),
    "a configuration": ("mig apply -c all-b", "all-balanced", "all-1g.5gb"),
    "an output": ("inspect -o g", "gpushare", "json"),
    "a shell": ("completion f", "fish", "zsh"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_proposed(case: str) -> None:
    typed, want, unwanted = CASES[case]
    words = typed.split()
    env = {"_TESSERA_COMPLETE": "bash_complete", "COMP_WORDS": f"tessera {typed}", "COMP_CWORD": str(len(words))}
    result = CliRunner().invoke(main, [], prog_name="tessera", complete_var="_TESSERA_COMPLETE", env=env)
    found = [line.partition(",")[2] for line in result.stdout.splitlines()]
    assert want in found
    assert unwanted not in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_TESSERA_COMPLETE={shell}_complete" in result.stdout
