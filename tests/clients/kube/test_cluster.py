"""Which server and which user a kubeconfig gives, and how credentials are renewed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tessera.clients.kube.cluster import find_access
from tessera.errors import InvalidInput, Unavailable

pytestmark = pytest.mark.anyio


def kubeconfig(folder: Path, user: dict[str, Any], server: str = "http://10.0.0.1:8080") -> Path:
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return path


def plugin(folder: Path, script: str) -> dict[str, Any]:
    """Return a user whose token a program tells."""
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(path)}}


async def test_a_certificate_or_nothing_needs_no_header(tmp_path: Path) -> None:
    credentials = find_access(kubeconfig(tmp_path, {})).credentials
    assert await credentials.header() == ""
    assert not await credentials.renew("")


async def test_a_token_stays_what_it_is(tmp_path: Path) -> None:
    credentials = find_access(kubeconfig(tmp_path, {"token": "secret"})).credentials
    assert await credentials.header() == "Bearer secret"
    assert not await credentials.renew("Bearer secret")
    assert await credentials.header() == "Bearer secret"


async def test_a_token_of_a_file_is_read_again_when_it_was_refused(tmp_path: Path) -> None:
    """As the kubelet renews the token of a service account."""
    token = tmp_path / "token"
    token.write_text("first\n")
    credentials = find_access(kubeconfig(tmp_path, {"tokenFile": str(token)})).credentials
    assert await credentials.header() == "Bearer first"
    assert not await credentials.renew("Bearer first"), "the file says the same"
    token.write_text("second\n")
    assert await credentials.header() == "Bearer first"
    assert await credentials.renew("Bearer first")
    assert await credentials.header() == "Bearer second"
    assert await credentials.renew("Bearer first"), "another request has renewed it already"
    token.unlink()
    with pytest.raises(Unavailable, match="credentials of the user"):
        await credentials.renew("Bearer second")


async def test_a_program_tells_the_token_once_until_it_is_refused(tmp_path: Path) -> None:
    script = f"""echo run >> {tmp_path}/runs; echo '{{"status": {{"token": "t'$(wc -l < {tmp_path}/runs)'"}}}}'"""
    credentials = find_access(kubeconfig(tmp_path, plugin(tmp_path, script))).credentials
    assert await credentials.header() == "Bearer t1"
    assert await credentials.header() == "Bearer t1"
    assert await credentials.renew("Bearer t1")
    assert await credentials.header() == "Bearer t2"


async def test_a_program_that_fails_is_reported(tmp_path: Path) -> None:
    credentials = find_access(kubeconfig(tmp_path, plugin(tmp_path, "echo no >&2; exit 3"))).credentials
    with pytest.raises(Unavailable, match="credentials of the user"):
        await credentials.header()


PROXIES = {
    "none": ({}, "https://10.0.0.1:6443", ""),
    "of its scheme": ({"HTTPS_PROXY": "http://p:3128"}, "https://10.0.0.1:6443", "http://p:3128"),
    "without a scheme": ({"https_proxy": "p:3128"}, "https://10.0.0.1:6443", "http://p:3128"),
    "of another scheme": ({"HTTPS_PROXY": "http://p:3128"}, "http://10.0.0.1:8080", ""),
    "not for this server": ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "10.0.0.1"}, "https://10.0.0.1:6443", ""),
}


@pytest.mark.parametrize("case", PROXIES)
def test_the_proxy_of_the_environment_is_taken(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, server, want = PROXIES[case]
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_access(kubeconfig(tmp_path, {"token": "t"}, server)).server.proxy == want


def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("clusters: 3")
    for name in ("absent", "broken"):
        with pytest.raises(InvalidInput, match=name):
            find_access(tmp_path / name)
    path = kubeconfig(tmp_path, {"token": "t"})
    with pytest.raises(InvalidInput, match=str(path)):
        find_access(path, "another-context")
    with pytest.raises(InvalidInput, match="address of a server"):
        find_access(kubeconfig(tmp_path, {"token": "t"}, "10.0.0.1"))


BROKEN: dict[str, tuple[bytes, str]] = {
    "a word": (b"x", "line 1: 'x' is not a kubeconfig: a mapping with clusters, contexts and users"),
    "a list": (b"[]", "a kubeconfig"),
    "bytes that are no text": (b"\xff\xfe\xff", "kubeconfig"),
    "clusters that are none": (b"clusters: x", "clusters: 'x' is not a list"),
    "a cluster that is none": (b"clusters: [x]", r"clusters\[0\]"),
    "a user that is none": (b"users: [{name: u, user: [1]}]", r"users\[0\].user"),
    "nothing": (b"", "nothing in it"),
    "an empty one": (b"{}", "it has no clusters"),
    "no cluster of its context": (
        b"current-context: c\ncontexts: [{name: c, context: {cluster: d, user: u}}]",
        "cluster",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_kubeconfig_of_another_form_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    content, want = BROKEN[case]
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=want) as refused:
        find_access(path)
    assert str(path) in str(refused.value)
    assert "has no attribute" not in str(refused.value)


def test_the_environment_names_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": "t"})))
    assert find_access().server.url == "http://10.0.0.1:8080"


def test_a_missing_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(InvalidInput, match=r"^kubeconfig ~/\.kube/config: there is no such file: pass --kubeconfig"):
        find_access()
    monkeypatch.setenv("KUBECONFIG", "/nowhere/k")
    with pytest.raises(InvalidInput, match=r"^kubeconfig /nowhere/k: there is no such file"):
        find_access()


def test_of_several_kubeconfigs_the_first_with_the_context_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in kubectl; files that are not there are left out."""
    files = [tmp_path / "absent"]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.append(kubeconfig(tmp_path / name, {"token": "t"}, f"http://{name}.example.com:8080"))
    for named, want in ((files, "one"), (files[::-1], "two"), ([Path(), files[2]], "two")):
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(str(each) if each.name else "" for each in named))
        assert find_access().server.url == f"http://{want}.example.com:8080"
    with pytest.raises(InvalidInput, match="Context 'other' not found"):
        find_access(context="other")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    with pytest.raises(InvalidInput, match="no file in KUBECONFIG has the context"):
        find_access(context="other")


def test_a_kubeconfig_that_is_no_yaml_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("clusters:\n- name: [c\n")
    with pytest.raises(InvalidInput, match=r"kubeconfig.*line"):
        find_access(path)
