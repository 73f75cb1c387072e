"""A progress bar on standard error while a long command works, where a person watches."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

__all__ = ["Report", "progress_bar"]

Report: TypeAlias = Callable[[str, int, int], None]
"""Takes the step that is under way, how much of it is done, and of how much; 0 where that is not known."""


@contextlib.contextmanager
def progress_bar(*, wanted: bool = True) -> Iterator[Report]:
    """Give a function that shows progress; it shows nothing where standard error is no terminal, or none is wanted.

    Each step has a bar of its own, in the place of the one before; it is gone afterwards.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    shown = wanted and sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:

        def report(step: str, done: int, total: int) -> None:
            if not progress.tasks or progress.tasks[0].description != step:
                for task in progress.task_ids:
                    progress.remove_task(task)
                progress.add_task(step, total=total or None)
            progress.update(progress.task_ids[0], completed=done, total=total or None)

        yield report
