"""A progress bar on standard error during a long command, in a terminal."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

__all__ = ["Report", "progress_bar"]

Report: TypeAlias = Callable[[str, int, int], None]
"""Takes the current step, how much of it is done, and of how much; 0 where unknown."""

_DRAWN_S = 0.1
"""Interval of updates: some callers report thousands of times a second."""
_PATIENCE_S = 2.0
"""Shorter commands show no bar."""


@contextlib.contextmanager
def progress_bar(step: str = "reading", *, after_s: float = _PATIENCE_S) -> Iterator[Report]:
    """Yield a function that shows progress after two seconds; it shows nothing if standard error is no terminal.

    Each step replaces the bar of the former; it is removed at the end.
    """
    if not sys.stderr.isatty():
        yield lambda _step, _done, _total: None
        return
    # Imported here: most commands run without a terminal, or end before a bar would show.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)

    drawn_at = 0.0

    def report(step: str, done: int, total: int) -> None:
        nonlocal drawn_at
        now = time.monotonic()
        if progress.tasks and progress.tasks[0].description == step and now - drawn_at < _DRAWN_S:
            return
        drawn_at = now
        if not progress.tasks or progress.tasks[0].description != step:
            for task in progress.task_ids:
                progress.remove_task(task)
            progress.add_task(step, total=total or None)
        progress.update(progress.task_ids[0], completed=done, total=total or None)

    report(step, 0, 0)
    late = threading.Timer(after_s, progress.start)
    late.daemon = True
    late.start()
    try:
        yield report
    finally:
        late.cancel()
        late.join()
        progress.stop()
