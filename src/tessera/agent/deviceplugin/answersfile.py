"""What `Allocate` answered and which exchanges are decided, on the node's disk: `shares.json`.

Its fields are those of the file, and so are those of what it consists of; files without a version are read too.
"""

from pathlib import Path
from typing import Literal

import msgspec

from tessera.agent.nodefiles import UNREADABLE, write_through
from tessera.core.deviceplugin.matching import Answer, Correction
from tessera.log import Logger

__all__ = ["Answers", "read_answers", "write_answers"]


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What a restart of the agent must not lose: between two calls, and between two changes of one exchange."""

    version: Literal[1] = 1
    answers: tuple[Answer, ...] = ()
    exchanges: tuple[Correction, ...] = ()


_DECODER = msgspec.json.Decoder(Answers)


def read_answers(path: Path | None, log: Logger) -> Answers:
    """Return what was kept; nothing where there is no file, or one that cannot be read.

    What `Allocate` answered a container is in the record of allocations too, so that it starts with nothing else.
    """
    if path is None or not path.exists():
        return Answers()
    try:
        return _DECODER.decode(path.read_bytes())
    except UNREADABLE as error:
        log.warning("answers_forgotten", reason=f"{path}: {error}")
        return Answers()


def write_answers(path: Path | None, kept: Answers, log: Logger) -> None:
    """Replace the file, and log where that cannot be done."""
    if path is None:
        return
    try:
        write_through(path, msgspec.json.encode(kept))
    except OSError as error:
        log.warning("answers_not_kept", reason=f"{path}: {error.strerror}")
