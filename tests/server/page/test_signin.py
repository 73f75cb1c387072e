"""Who a viewer is, and which namespaces they may see: by reviews at the API server, cached for half a minute."""

import pytest

from harness.servers import Clock
from tessera.api.kubernetes.reviews import ReviewedUser
from tessera.clients.kube import MemoryKube
from tessera.core.explain.fleetscope import EVERYTHING, Scope
from tessera.errors import TesseraError
from tessera.server.page.signin import SignIn, Viewer

pytestmark = pytest.mark.anyio

NAMESPACES = ("ml", "vision")
# Keyed by a sentence: what they may list (resource, namespaces; none for everywhere), and who they then are.
VIEWERS: dict[str, tuple[list[tuple[str, list[str] | None]], Viewer]] = {
    "nodes and all pods": (
        [("nodes", None), ("pods", None)],
        Viewer(name="ann", scope=EVERYTHING, admitted=True),
    ),
    "all pods": ([("pods", None)], Viewer(name="ann", scope=Scope(namespaces=frozenset(NAMESPACES)), admitted=True)),
    "nodes alone": ([("nodes", None)], Viewer(name="ann", scope=Scope(namespaces=frozenset()), admitted=True)),
    "pods of one namespace": (
        [("pods", ["vision"])],
        Viewer(name="ann", scope=Scope(namespaces=frozenset({"vision"})), admitted=True),
    ),
    "pods of a namespace without GPUs": (
        [("pods", ["web"])],
        Viewer(name="ann", scope=Scope(namespaces=frozenset()), admitted=False),
    ),
    "nothing": ([], Viewer(name="ann", scope=Scope(namespaces=frozenset()), admitted=False)),
}


def accounts(rights: list[tuple[str, list[str] | None]]) -> MemoryKube:
    kube = MemoryKube()
    kube.accounts.add("token", ReviewedUser(username="ann"))
    for resource, namespaces in rights:
        if namespaces is None:
            kube.accounts.allow("ann", "list", resource)
        else:
            kube.accounts.allow("ann", "list", resource, namespaces)
    return kube


async def signed_in(sign_in: SignIn, token: str) -> Viewer | None:
    user = await sign_in.user(token)
    return None if user is None else await sign_in.viewer(user, NAMESPACES)


@pytest.mark.parametrize("case", VIEWERS)
async def test_a_viewer_sees_the_namespaces_whose_pods_they_may_list(case: str) -> None:
    rights, want = VIEWERS[case]
    assert await signed_in(SignIn(accounts(rights), Clock()), "token") == want


@pytest.mark.parametrize("token", ["", "unknown", "x" * 20_000])
async def test_a_token_that_is_nobodys_has_no_viewer(token: str) -> None:
    assert await signed_in(SignIn(accounts([("pods", None)]), Clock()), token) is None


async def test_a_revoked_token_counts_for_half_a_minute_at_most() -> None:
    kube, clock = accounts([("pods", None)]), Clock()
    sign_in = SignIn(kube, clock)
    known = await signed_in(sign_in, "token")
    assert known
    kube.accounts.drop("token")
    clock.now_s += 29
    assert await signed_in(sign_in, "token") == known
    clock.now_s += 2
    assert await signed_in(sign_in, "token") is None


async def test_an_api_server_that_does_not_answer_is_an_error_and_nobody_is_let_in() -> None:
    kube = accounts([("pods", None)])
    kube.stop()
    with pytest.raises(TesseraError):
        await signed_in(SignIn(kube, Clock()), "token")
