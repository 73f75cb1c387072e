"""Logs of the long-running processes: one event a line on standard error, for machines or for a terminal."""

import asyncio
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from tessera.errors import TesseraError

__all__ = ["Format", "Level", "Logger", "RepeatedError", "RepeatedErrors", "configure", "defect", "logger"]

Format = Literal["auto", "json", "text"]
"""`auto` is text on a terminal and JSON elsewhere."""
Level = Literal["debug", "info", "warning", "error"]
Logger = FilteringBoundLogger


def logger(**fields: object) -> Logger:
    """Return a logger whose events carry these fields: `node`, `gpu`, `pod`, `plan`, `reason`.

    An event is a snake_case name, one for each decision applied: `log.info("layout_applied", gpu=0)`.
    """
    made: Logger = structlog.get_logger(**fields)
    return made


def defect(error: BaseException) -> BaseException | None:
    """Return an unexpected error, whose traceback belongs in the log; None for all others."""
    expected = isinstance(error, TesseraError | TimeoutError | OSError | asyncio.CancelledError)
    return None if expected else error


class RepeatedError:
    """The error of a loop, logged when it begins and when its reason changes, not in every pass.

    Args:
        log: the logger.
        event: of each error.
        **fields: fields of each.

    """

    def __init__(self, log: Logger, event: str, **fields: object) -> None:
        self._log = log
        self._event = event
        self._fields = fields
        self.reason = ""
        """The present reason; empty for none."""

    def __call__(self, error: BaseException) -> None:
        """Log an error."""
        reason = str(error) or type(error).__name__
        if reason != self.reason:
            self._log.warning(self._event, reason=reason, exc_info=defect(error), **self._fields)
        self.reason = reason

    def clear(self) -> None:
        """Note success: the same error is logged again after this."""
        self.reason = ""


class RepeatedErrors:
    """Errors that come again in every pass, each logged once; a defect is logged each time.

    Args:
        log: the logger.
        event: of each error.

    """

    def __init__(self, log: Logger, event: str) -> None:
        self._log = log
        self._event = event
        self._logged: set[str] = set()

    def __call__(self, error: BaseException) -> None:
        """Log an error."""
        reason = str(error) or type(error).__name__
        unexpected = defect(error)
        if unexpected is not None:
            self._log.error(self._event, reason=reason, exc_info=unexpected)
        elif reason not in self._logged:
            self._logged.add(reason)
            self._log.warning(self._event, reason=reason)


def configure(level: Level = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Send the logs of this process to a stream, standard error if none is given."""
    out = stream or sys.stderr
    text = form == "text" or (form == "auto" and out.isatty())
    last: tuple[Processor, ...] = (
        (structlog.dev.ConsoleRenderer(colors=out.isatty()),)
        if text
        else (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
