"""The whole exception tree, by what the caller can do about it.

    TesseraError
    ├── InvalidInput   fix the input and call again
    ├── Unavailable    try again later
    ├── Conflict       observe the world again, then decide again
    └── Unsupported    this node, GPU or build cannot do it; choose another

"It does not fit" is a result with a reason, never an exception.
"""

__all__ = ["UNDECODABLE", "Conflict", "InvalidInput", "TesseraError", "Unavailable", "Unsupported", "shown"]

UNDECODABLE = (ValueError, RecursionError)
"""What decoding raises of bytes that somebody else wrote, whatever is in them: msgspec's errors are ValueErrors, and
nesting without end is a RecursionError."""

_SHOWN_CHARACTERS = 64


def shown(value: object) -> str:
    """Return a piece of input as an error shows it: quoted, control characters escaped, cut where it is long."""
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


class TesseraError(Exception):
    """Any error Tessera raises on purpose. Its text names the object, what was found, what was expected, and a hint.

    Args:
        subject: the object the error is about, with its place: `pods.yaml, document 2, line 7: limit nvidia.com/gpu`.
        found: what was there, as the user wrote it.
        expected: what should be in its place; without it `found` is the cause, as a phrase.
        hint: what would be accepted, or what to do next; left out of the text when empty.

    """

    def __init__(self, subject: str, *, found: str, expected: str = "", hint: str = "") -> None:
        self.subject = subject
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(subject, found, expected, hint)

    def __str__(self) -> str:
        """Return one line: subject, cause, what was expected, and the hint where there is one."""
        if not self.expected:
            return f"{self.subject}: {self.found}: {self.hint}" if self.hint else f"{self.subject}: {self.found}"
        text = f"{self.subject}: {self.found}; expected {self.expected}"
        return f"{text}; hint: {self.hint}" if self.hint else text


class InvalidInput(TesseraError):
    """The input is wrong; the caller fixes it."""


class Unavailable(TesseraError):
    """Something outside did not answer; the caller tries again later."""


class Conflict(TesseraError):
    """The world changed meanwhile; the caller observes again and decides again."""


class Unsupported(TesseraError):
    """This node, GPU or build cannot do it; the caller chooses another."""
