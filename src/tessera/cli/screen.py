"""Output of commands that show something changing until they are interrupted."""

from collections.abc import Callable
from typing import Generic, Self, TypeVar

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

__all__ = ["Screen"]

Shown = TypeVar("Shown")


class Screen(Generic[Shown]):
    """Shows changing output: redrawn in place in a terminal, frame after frame if piped.

    Args:
        console: the output.
        drawn: its content.

    """

    def __init__(self, console: Console, drawn: Callable[[Shown], RenderableType]) -> None:
        self._console = console
        self._drawn = drawn
        redraws = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False) if redraws else None
        self._frame: RenderableType | None = None

    def __enter__(self) -> Self:
        """Take over the terminal."""
        if self._live is not None:
            self._live.start()
            self._draw(Text("waiting for the cluster"))
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the last frame and restore the cursor."""
        if self._live is not None:
            self._live.stop()

    def show(self, content: Shown) -> None:
        """Show the current content."""
        self._frame = self._drawn(content)
        self._draw(self._frame)

    def show_error(self, error: Exception) -> None:
        """Show above the last frame why there is no newer one; stderr says it where the output is read by a program."""
        if not self._console.is_terminal:
            click.echo(f"out of date: {error}", err=True)
            return
        text = Text(f"out of date: {error}", "bold yellow")
        self._draw(text if self._frame is None else Group(text, self._frame))  # what is below may be cut

    def _draw(self, frame: RenderableType) -> None:
        if self._live is not None:
            self._live.update(_Cut(frame), refresh=True)
        else:
            self._console.print(frame, soft_wrap=isinstance(frame, Text))


class _Cut:
    """What fits into the terminal of a frame, with an ellipsis for the rest: also of the last one, unlike by `Live`."""

    def __init__(self, frame: RenderableType) -> None:
        self._frame = frame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw its first lines."""
        lines, most = console.render_lines(self._frame, options, pad=False), options.size.height
        if len(lines) > most:
            lines = [*lines[: most - 1], [Segment("…")]]
        for number, line in enumerate(lines):
            if number:
                yield Segment.line()
            yield from line
