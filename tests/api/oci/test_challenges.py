"""What a registry wants to see, and the tokens that it gives."""

import pytest

from tessera.api.oci.challenges import Challenge, read_challenge, read_token
from tessera.errors import Unavailable

READ = {
    'Bearer realm="https://auth.example/token",service="r.example",scope="repository:a:pull"': Challenge(
        "bearer", "https://auth.example/token", "r.example", "repository:a:pull"
    ),
    'bearer service="x y", realm=http://127.0.0.1:5001/auth?x=1': Challenge(
        "bearer", "http://127.0.0.1:5001/auth?x=1", "x y"
    ),
    'Basic realm="Registry"': Challenge("basic"),
    "BASIC": Challenge("basic"),
}


@pytest.mark.parametrize("header", READ)
def test_a_challenge_is_read(header: str) -> None:
    assert read_challenge(header, "x") == READ[header]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        'Bearer realm="file:///etc/passwd"',
        'Bearer realm="https://user@evil.example/"',
        "Negotiate abc",
        'Bearer realm="https://a b"',
    ],
)
def test_what_is_not_known_is_refused(header: str) -> None:
    with pytest.raises(Unavailable, match="Bearer or Basic"):
        read_challenge(header, "image x")


def test_a_token_has_two_names() -> None:
    assert read_token(b'{"token": "a", "expires_in": 60}', "x") == "a"
    assert read_token(b'{"access_token": "b"}', "x") == "b"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"token": 1}', b'{"token": "a\\r\\nX: y"}', '{"token": "é"}'.encode(), b"[" * 100_000]
)
def test_what_is_no_token(content: bytes) -> None:
    with pytest.raises(Unavailable, match="token"):
        read_token(content, "image x")
