"""Delegated authentication and authorization: users by headers and token."""

from typing import Any

import pytest

from tessera.api.kubernetes.reviews import Attributes, ReviewedUser
from tessera.clients.kube import CONFIG_MAPS, MemoryKube
from tessera.errors import Unavailable
from tessera.server.metrics.access import MetricsAccess

pytestmark = pytest.mark.anyio

PEER = {"subject": ((("organizationName", "x"),), (("commonName", "front"),))}


def config(**data: str) -> dict[str, Any]:
    name = {"name": "extension-apiserver-authentication", "namespace": "kube-system"}
    usual = {
        "requestheader-client-ca-file": "PEM",
        "requestheader-allowed-names": '["front"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    return {"metadata": name, "data": {**usual, **data}}


async def test_an_authority_is_trusted_once_until_it_changes() -> None:
    kube, trusted = MemoryKube(), list[str]()
    access = MetricsAccess(kube)
    with pytest.raises(
        Unavailable,
        match="extension-apiserver-authentication: it does not exist, so kube-apiserver's proxy certificate cannot",
    ):
        await access.read_proxy(trusted.append)
    assert not access.known.is_set()
    made = await kube.create(CONFIG_MAPS, config())
    for _ in range(2):
        await access.read_proxy(trusted.append)
    await kube.patch(
        CONFIG_MAPS,
        made["metadata"]["name"],
        {"data": {"requestheader-client-ca-file": "NEW"}},
        namespace="kube-system",
    )
    await access.read_proxy(trusted.append)
    assert trusted == ["PEM", "NEW"]
    assert access.known.is_set()


async def test_extra_fields_are_decoded_and_gathered() -> None:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, config())
    access = MetricsAccess(kube)
    await access.read_proxy(lambda _: None)
    headers = [
        ("x-remote-user", "jane"),
        ("x-remote-group", "a"),
        ("x-remote-extra-acme.org%2fproject", "1"),
        ("x-remote-extra-acme.org%2fproject", "2"),
    ]
    want = ReviewedUser(username="jane", groups=("a", "system:authenticated"), extra={"acme.org/project": ("1", "2")})
    assert await access.user(PEER, headers) == want
    assert await access.user({"subject": ()}, headers) is None
    assert await access.user(None, headers) is None


@pytest.mark.parametrize(
    ("name", "groups", "want"),
    [
        ("system:kube-aggregator", (), ("system:authenticated",)),
        ("jane", ("system:authenticated", "a"), ("system:authenticated", "a")),
        ("system:anonymous", ("system:unauthenticated",), ("system:unauthenticated",)),
        ("system:anonymous", (), ()),
    ],
)
async def test_whom_the_proxy_names_is_one_of_the_authenticated(
    name: str, groups: tuple[str, ...], want: tuple[str, ...]
) -> None:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, config())
    access = MetricsAccess(kube)
    await access.read_proxy(lambda _: None)
    found = await access.user(PEER, [("x-remote-user", name), *(("x-remote-group", each) for each in groups)])
    assert found == ReviewedUser(username=name, groups=want)


async def test_whose_a_token_is_and_what_they_may_the_api_server_says() -> None:
    kube = MemoryKube()
    kube.accounts.add("t", ReviewedUser(username="jane"))
    kube.accounts.allow("jane", "get", "/apis")
    access = MetricsAccess(kube)
    jane = await access.user(None, [("accept", "x"), ("authorization", "Bearer t")])
    assert jane == ReviewedUser(username="jane")
    assert await access.refusal(jane, Attributes(path="/apis")) is None
    assert await access.refusal(jane, Attributes(path="/api")) == "no role grants it"
    for header in ("Bearer other", "Bearer", "Basic t", "t", ""):
        assert await access.user(None, [("authorization", header)]) is None
