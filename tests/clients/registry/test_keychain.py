"""Credentials of this user: the file, and the programs that it names."""

import json
from pathlib import Path

import pytest

from tessera.api.oci.dockerconfig import DockerConfig, RegistryCredential
from tessera.api.oci.references import read_reference
from tessera.clients.registry import Keychain
from tessera.errors import InvalidInput, Unavailable

pytestmark = pytest.mark.anyio

IMAGE = read_reference("registry.example/a:1")


def helper(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "docker-credential-suite"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


async def test_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert await Keychain.of_this_user().find(IMAGE) is None
    content = json.dumps({"auths": {"registry.example": {"username": "u", "password": "p"}}})
    (tmp_path / "config.json").write_text(content)
    assert await Keychain.of_this_user().find(IMAGE) == RegistryCredential(username="u", password="p")
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert await Keychain.of_this_user(other).find(IMAGE) is None


ANSWERS = {
    "a password": (
        """read host; echo "{\\"Username\\": \\"u\\", \\"Secret\\": \\"$host\\"}" """,
        RegistryCredential(username="u", password="registry.example"),
    ),
    "an identity token": ("""echo '{"Username": "<token>", "Secret": "t"}'""", RegistryCredential(identity_token="t")),
    "nothing": ("echo credentials not found in native keychain; exit 1", None),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_a_program_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    script, want = ANSWERS[case]
    helper(tmp_path, monkeypatch, script)
    assert await Keychain(DockerConfig(creds_store="suite")).find(IMAGE) == want
    assert await Keychain(DockerConfig(cred_helpers={"registry.example": "suite"})).find(IMAGE) == want
    assert await Keychain(DockerConfig(cred_helpers={"other.example": "suite"})).find(IMAGE) is None


async def test_a_program_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(tmp_path, monkeypatch, "echo no JSON")
    with pytest.raises(Unavailable, match="docker-credential-suite: its answer is not JSON"):
        await Keychain(DockerConfig(creds_store="suite")).find(IMAGE)
    with pytest.raises(Unavailable, match="docker-credential-none"):
        await Keychain(DockerConfig(creds_store="none")).find(IMAGE)
    with pytest.raises(InvalidInput, match=r"helper '../../bin/sh'"):
        await Keychain(DockerConfig(creds_store="../../bin/sh")).find(IMAGE)
