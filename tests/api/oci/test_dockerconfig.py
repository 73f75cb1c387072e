"""Credentials for registries: which entry is an image's, and what is none."""

import base64
import json
from typing import Any

import pytest

from tessera.api.oci.dockerconfig import RegistryCredential, credential, read_docker_config, read_pull_secret
from tessera.api.oci.references import read_reference
from tessera.errors import InvalidInput


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


CONFIG = read_docker_config(
    json.dumps(
        {
            "auths": {
                "https://index.docker.io/v1/": auth("hub:h"),
                "registry.example": auth("all:a:b"),
                "registry.example/team": {"username": "team", "password": "t"},
                "*.cloud.example": {"identitytoken": "token"},
                "http://plain.example:5000/v2/": auth("plain:p"),
            },
            "HttpHeaders": {"User-Agent": "x"},
        }
    ).encode(),
    "config.json",
)
WHOSE = {
    "busybox": "hub",
    "registry.example/a": "all",
    "registry.example/team/a": "team",
    "registry.example/teams/a": "all",
    "eu.cloud.example/a": "",
    "cloud.example/a": None,
    "a.eu.cloud.example/a": None,
    "plain.example:5000/a": "plain",
    "plain.example/a": None,
}


@pytest.mark.parametrize("name", WHOSE)
def test_the_longest_name_that_matches_wins(name: str) -> None:
    found = credential((CONFIG,), read_reference(name))
    assert (found and found.username) == WHOSE[name]


def test_passwords_may_have_colons_and_tokens_stand_alone() -> None:
    assert credential((CONFIG,), read_reference("registry.example/a")) == RegistryCredential(
        username="all", password="a:b"
    )
    assert credential((CONFIG,), read_reference("eu.cloud.example/a")) == RegistryCredential(identity_token="token")


def test_of_several_configurations_the_first_wins() -> None:
    other = read_docker_config(json.dumps({"auths": {"registry.example": auth("other:o")}}).encode(), "x")
    for configs, want in (((CONFIG, other), "all"), ((other, CONFIG), "other")):
        found = credential(configs, read_reference("registry.example/a"))
        assert found is not None
        assert found.username == want


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"auths": {"r": {"auth": "secret!"}}}', b'{"auths": 1}', b"[" * 100_000]
)
def test_what_is_no_configuration_is_refused_without_its_secrets(content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"config\.json") as caught:
        read_docker_config(content, "config.json")
    assert "secret" not in str(caught.value).replace("a Secret", "").replace("create secret", "")


def secret(data: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "registry", "namespace": "tessera-system"}, "data": data}


def test_a_secret_gives_credentials_and_names_no_programs() -> None:
    content = json.dumps({"auths": {"registry.example": auth("u:p")}, "credsStore": "x", "credHelpers": {"a": "b"}})
    found = read_pull_secret(secret({".dockerconfigjson": base64.b64encode(content.encode()).decode()}))
    assert (found.creds_store, found.cred_helpers) == ("", {})
    assert credential((found,), read_reference("registry.example/a")) == RegistryCredential(username="u", password="p")


SECRETS: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"token": "x"}, "create it with type kubernetes.io/dockerconfigjson"),
    "no text": ({".dockerconfigjson": 1}, "create it with type kubernetes.io/dockerconfigjson"),
    "its data is not base64": ({".dockerconfigjson": "?"}, "its data is not base64"),
    "no JSON": ({".dockerconfigjson": "AAAA"}, "Docker's config.json"),
}


@pytest.mark.parametrize("case", SECRETS)
def test_a_secret_without_credentials_is_named(case: str) -> None:
    data, want = SECRETS[case]
    with pytest.raises(InvalidInput, match=f"Secret tessera-system/registry.*{want}"):
        read_pull_secret(secret(data))
