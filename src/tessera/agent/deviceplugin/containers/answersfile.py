"""The answers of `Allocate` and the decided exchanges, on the node's disk: `shares.json`."""

from pathlib import Path

from tessera.agent.nodefiles import UNREADABLE, write_through
from tessera.api.tessera.node import agentfiles
from tessera.api.tessera.node.agentfiles import Answers
from tessera.errors import InvalidInput
from tessera.log import Logger

__all__ = ["read_answers", "write_answers"]


def read_answers(path: Path | None, log: Logger) -> Answers:
    """Return the stored content; nothing where there is no file, or an unreadable one.

    The answers are in the record of allocations too, so a container is never started with other devices.
    """
    if path is None or not path.exists():
        return Answers()
    try:
        return agentfiles.read_answers(path.read_bytes(), str(path))
    except (InvalidInput, *UNREADABLE) as error:
        log.warning("answers_forgotten", reason=str(error))
        return Answers()


def write_answers(path: Path | None, answers: Answers, log: Logger) -> None:
    """Replace the file; log a failure."""
    if path is None:
        return
    try:
        write_through(path, agentfiles.write_answers(answers))
    except OSError as error:
        log.warning("answers_not_kept", reason=f"{path}: {error.strerror}")
