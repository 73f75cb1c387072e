"""The whole exception tree, by what the caller can do about it.

    TesseraError
    ├── InvalidInput   fix the input and call again
    ├── Unavailable    try again later
    ├── Conflict       observe again, then decide again
    └── Unsupported    this node, GPU or build cannot do it; choose another

"It does not fit" is a result with a reason, never an exception.
"""

__all__ = ["UNDECODABLE", "Conflict", "InvalidInput", "TesseraError", "Unavailable", "Unsupported", "shown"]

UNDECODABLE = (ValueError, RecursionError)
"""Decoding errors of untrusted bytes, whatever is in them: msgspec's errors are ValueErrors, and
endless nesting is a RecursionError."""

_SHOWN_CHARACTERS = 64


def shown(value: object) -> str:
    """Return a piece of input for an error: quoted, control characters escaped, truncated."""
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


class TesseraError(Exception):
    """Any error Tessera raises on purpose. Its text names the object, the cause, and what to do: `object: cause: fix`.

    A wrong value is quoted with what it should be: `line 7: limit nvidia.com/gpu: 0.5 is not a whole number`. Any
    other cause is a phrase of its own: `node gpu-1: it has no label nvidia.com/gpu.product: label it, or ...`.

    Args:
        subject: the object of the error, with its place: `pods.yaml, document 2, line 7: limit nvidia.com/gpu`.
        found: the wrong value, as the user wrote it; without `expected` the cause, as a phrase.
        expected: what `found` is not.
        hint: the fix: what to do, or what would be accepted.

    """

    def __init__(self, subject: str, *, found: str, expected: str = "", hint: str = "") -> None:
        self.subject = subject
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(subject, found, expected, hint)

    @property
    def cause(self) -> str:
        """What is wrong with the object, as a phrase."""
        return f"{self.found} is not {self.expected}" if self.expected else self.found

    @property
    def advice(self) -> str:
        """The cause and the fix, without the object."""
        return f"{self.cause}: {self.hint}" if self.hint else self.cause

    def __str__(self) -> str:
        """Return one line: object, cause, and the fix if there is one."""
        return f"{self.subject}: {self.advice}"


class InvalidInput(TesseraError):
    """The input is wrong; the caller fixes it."""


class Unavailable(TesseraError):
    """The API server, the driver or another service did not answer; the caller tries again later."""


class Conflict(TesseraError):
    """The state changed meanwhile; the caller observes again and decides again."""


class Unsupported(TesseraError):
    """This node, GPU or build cannot do it; the caller chooses another."""
