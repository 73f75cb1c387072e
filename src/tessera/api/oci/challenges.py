"""A registry's authentication challenge: the header WWW-Authenticate, and tokens.

Source: RFC 9110 section 11; distribution `docs/content/spec/auth/token.md`.
"""

import re

import msgspec

from tessera.errors import UNDECODABLE, Unavailable, shown

__all__ = ["Challenge", "read_challenge", "read_token"]

_PARAMETER = re.compile(r'([A-Za-z_]+)=(?:"([^"\\]*)"|([^\s",]+))')
_ADDRESS = re.compile(r"https?://[^/\s?#@]+([/?][^\s#]*)?", re.ASCII)


class Challenge(msgspec.Struct, frozen=True):
    """What a registry requires."""

    scheme: str
    """`bearer` or `basic`."""
    realm: str = ""
    """URL of the token service."""
    service: str = ""
    scope: str = ""


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


def read_challenge(header: str, subject: str) -> Challenge:
    """Return what a registry requires.

    Raises:
        Unavailable: an unsupported challenge.

    """
    scheme, _, rest = header.strip().partition(" ")
    given = {name.lower(): quoted or bare for name, quoted, bare in _PARAMETER.findall(rest)}
    if scheme.lower() == "bearer" and _ADDRESS.fullmatch(given.get("realm", "")):
        return Challenge("bearer", given["realm"], given.get("service", ""), given.get("scope", ""))
    if scheme.lower() == "basic":
        return Challenge("basic")
    raise Unavailable(
        subject,
        found=f"the registry demands {shown(header)}",
        hint="Tessera signs in by Bearer or Basic; use a registry that offers one",
    )


def read_token(content: bytes, subject: str) -> str:
    """Return the token from a realm's answer.

    Raises:
        Unavailable: none.

    """
    try:
        found = msgspec.json.decode(content, type=_Token)
    except UNDECODABLE as error:
        raise Unavailable(
            subject, found="the answer is not the JSON of a token", hint="check the registry's token service"
        ) from error
    token = found.token or found.access_token
    if not token or not token.isascii() or not token.isprintable():
        raise Unavailable(subject, found="the answer has no token", hint="check the registry's token service")
    return token
