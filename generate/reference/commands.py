"""The reference of the command line, from the commands themselves."""

import inspect
from collections.abc import Iterator

import click

from generate.reference.tables import plain, table
from tessera.cli import COMMANDS, main

__all__ = ["page"]

_WIDTH = 100


def page() -> str:
    """Return all commands with their options, in the order of `tessera --help`."""
    root = click.Context(main, info_name="tessera", terminal_width=_WIDTH, **main.context_settings)
    rows = ((f"[`tessera {name}`](#tessera-{name})", plain(text)) for name, text in COMMANDS.items())
    head = ("# Commands\n\n", table(("command", "what it does"), rows), "\n", _prose(main.epilog or ""))
    return "".join((*head, *(part for name in COMMANDS for part in _command(root, name))))


def _command(above: click.Context, name: str) -> Iterator[str]:
    """Yield the parts of a command, then those of the commands below it."""
    assert isinstance(above.command, click.Group)
    command = above.command.get_command(above, name)
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=above)
    yield f"\n{'##' if above.parent is None else '###'} {context.command_path}\n\n"
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"`{' '.join(usage.split())}`\n\n{_prose(command.help or '')}"
    options = [each.get_help_record(context) for each in command.params if isinstance(each, click.Option)]
    rows = [(f"`{record[0]}`", plain(record[1])) for record in options if record is not None]
    if rows:
        yield "\n" + table(("option", "meaning"), rows)
    if command.epilog:
        yield f"\n{_prose(command.epilog)}"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            yield from _command(context, below)


def _prose(text: str) -> str:
    """Return a help text: paragraphs as they are, and what click keeps line by line as a block."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if first.strip() != "\b":
            parts.append(plain(paragraph))
            continue
        title, _, lines = rest.partition("\n")
        if title.endswith(":"):
            parts.append(plain(title))
        else:
            lines = rest
        parts.append(f"```sh\n{inspect.cleandoc(lines)}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"
