"""Logs of the long-running processes: one event a line on standard error, for machines or for a terminal."""

import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

__all__ = ["Format", "Level", "Logger", "configure", "logger"]

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
