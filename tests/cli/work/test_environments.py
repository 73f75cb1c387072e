"""Environments by name: which there are, and which would do."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.kubeapi import KubeApi, serving
from tessera.api.tessera.v1alpha1.environments import choose_environment
from tessera.cli.work.environmentcatalog import read_environments
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


async def test_a_cluster_without_any_says_what_to_do(tmp_path: Path) -> None:
    async with serving(KubeApi(MemoryKube()), tmp_path) as kubeconfig:
        command = (sys.executable, "-m", "tessera", "environments", "--kubeconfig", str(kubeconfig))
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        listed = await asyncio.to_thread(subprocess.run, (*command, "-o", "json"), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("no environments: apply an Environment of tessera.dev/v1alpha1, or name an image")
    assert json.loads(listed.stdout) == []
