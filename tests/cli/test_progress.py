"""Progress: on a terminal, after a while, and gone afterwards."""

import contextlib
import io
import threading

import pytest

from tessera.cli.progress import progress_bar


class Terminal(io.StringIO):
    """A terminal that says when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


def test_what_lasts_shows_its_step_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with contextlib.redirect_stderr(terminal), progress_bar("reading", after_s=0) as report:
        report("placing pods", 1, 4)
        assert terminal.written.wait(60)
        report("finding reasons", 1, 2)
    text = terminal.getvalue()
    assert "finding reasons" in text
    assert "\x1b[2K" in text, "the bar is taken away"


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with contextlib.redirect_stderr(terminal), progress_bar(after_s=3600) as report:
        report("placing pods", 1, 0)
    assert terminal.getvalue() == ""


def test_no_terminal_shows_nothing() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as text, progress_bar(after_s=0) as report:
        report("placing pods", 1, 2)
    assert text.getvalue() == ""
