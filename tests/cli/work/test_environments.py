"""Environments by name: which there are, and which would do."""

import pytest

from tessera.api.tessera.v1alpha1.environments import Environment
from tessera.cli.work.environments import Catalog, choose_environment, read_environments
from tessera.clients.kube import ENVIRONMENTS, MemoryKube
from tessera.errors import InvalidInput, Unavailable

pytestmark = pytest.mark.anyio


async def catalog() -> MemoryKube:
    kube = MemoryKube()
    for name, notebook in (("pytorch", False), ("jupyter", True)):
        spec = {"image": f"r.example/{name}:1", "notebook": notebook}
        await kube.create(ENVIRONMENTS, {"metadata": {"name": name}, "spec": spec})
    return kube


async def test_the_environments_of_a_cluster_by_name() -> None:
    known = await read_environments(await catalog())
    assert [each.name for each in known.known] == ["jupyter", "pytorch"]
    assert choose_environment(known, "pytorch", notebook=False).image == "r.example/pytorch:1"
    assert choose_environment(known, "jupyter", notebook=True).name == "jupyter"


async def test_one_that_cannot_be_read_hides_no_other_and_says_what_is_wrong_to_who_asks_for_it() -> None:
    kube = await catalog()
    await kube.create(ENVIRONMENTS, {"metadata": {"name": "newer"}, "spec": {"image": "a", "gpus": 3}})
    known = await read_environments(kube)
    assert choose_environment(known, "pytorch", notebook=False).image == "r.example/pytorch:1"
    with pytest.raises(InvalidInput, match=r"Environment newer: .*gpus"):
        choose_environment(known, "newer", notebook=False)
    with pytest.raises(InvalidInput, match="choose one of jupyter, pytorch,"):
        choose_environment(known, "other", notebook=False)


async def test_who_may_not_read_them_learns_how() -> None:
    kube = await catalog()
    kube.withhold("", ENVIRONMENTS)
    with pytest.raises(
        Unavailable, match=r"ClusterRole tessera-environments, which the chart binds to all users, or pass"
    ):
        await read_environments(kube)


JUPYTER = Environment(name="jupyter", image="a", description="", tools=(), notebook=True)
PLAIN = Environment(name="plain", image="b", description="", tools=(), notebook=False)
# Keyed by a sentence: those that there are, the name, whether for a notebook, what the error says.
REFUSED: dict[str, tuple[tuple[Environment, ...], str, bool, str]] = {
    "another name": ((JUPYTER, PLAIN), "x", False, "there is no such environment: choose one of jupyter, plain"),
    "another name for a notebook": ((JUPYTER, PLAIN), "x", True, "one of jupyter, or name"),
    "no JupyterLab": ((JUPYTER, PLAIN), "plain", True, "plain: it has no JupyterLab: choose one of jupyter"),
    "none at all": ((), "x", False, "--environment x: there is no such environment: apply an Environment"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_do_is_named(case: str) -> None:
    known, name, notebook, want = REFUSED[case]
    with pytest.raises(InvalidInput, match=want):
        choose_environment(Catalog(known=known), name, notebook=notebook)
