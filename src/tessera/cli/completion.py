"""Shell completion: the script for a shell, and the names of GPU models and configurations."""

import re
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from tessera.core.gpu.gpumodels import CATALOG
from tessera.core.gpu.mig import named_layouts

__all__ = ["complete_configurations", "complete_gpus", "complete_models", "complete_prices", "completion"]

_SHELLS = ("bash", "zsh", "fish")


def complete_models(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the GPU models that start with the typed text, in any case."""
    del context, option
    return _models(typed)


def complete_gpus(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the completions of `8xH1` and `'4x(8xH1`: the number of GPUs is kept."""
    del context, option
    number = re.match(r"(\d+x\(?)*", typed)
    assert number is not None, "it matches nothing too"
    return _models(typed[number.end() :], before=number[0], after=")" if "(" in number[0] else "")


def complete_prices(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the GPU models that start with the typed text, with the sign before the price."""
    del context, option
    return _models(typed, after="=")


def complete_configurations(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the built-in configuration names that start with the typed text."""
    del context, option
    names = dict.fromkeys(name for gpu in CATALOG if gpu.profiles for name in named_layouts(gpu))
    return [CompletionItem(name) for name in sorted(names) if name.startswith(typed)]


def _models(typed: str, before: str = "", after: str = "") -> list[CompletionItem]:
    names: Sequence[str] = [gpu.name for gpu in CATALOG if gpu.name.casefold().startswith(typed.casefold())]
    return [CompletionItem(f"{before}{name}{after}") for name in names]


@click.command(
    epilog="""
\b
Examples:
  eval "$(tessera completion bash)"                      # in ~/.bashrc
  eval "$(tessera completion zsh)"                       # in ~/.zshrc
  tessera completion fish > ~/.config/fish/completions/tessera.fish
"""
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and names in bash, zsh or fish.

    Names are those of GPU models and of MIG configurations.
    """
    found = get_completion_class(shell)
    assert found is not None, f"click completes in {shell}"
    click.echo(found(context.find_root().command, {}, "tessera", "_TESSERA_COMPLETE").source())
