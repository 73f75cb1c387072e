"""Labels, files, options and GPUPolicies together: the advertised devices, and the settings without effect."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.policyobjects import gpu_policy
from harness.agentmachine import Machine, WatchedDriver
from tessera.agent.declarations.configuration import APPLIED
from tessera.agent.settings import AgentSettings
from tessera.clients.kube import GPU_NODES, GPU_POLICIES, NODES, MemoryKube, Object, annotations_of
from tessera.clients.kubelet import MemoryKubelet
from tessera.controller.run import Controller
from tessera.controller.settings import ControllerSettings
from tessera.core.node.nodelabels import PLUGIN_CONFIG
from tessera.core.node.nodesharing import Strategy

pytestmark = pytest.mark.anyio

CONTROLLER = ControllerSettings(identity="one", interval_s=0.05, least_s=0)
SLICES = {"gpus": [{"sharing": {"mode": "mig", "layout": {"configuration": "all-1g.10gb"}}}]}
SHARING = """
version: v1
{flags}
sharing:
  timeSlicing:
    resources: [{{name: nvidia.com/gpu, replicas: 3}}]
"""


class Started(Machine, kw_only=True):
    """A machine whose agent is given a MIG strategy."""

    strategy: Strategy | None = None

    @property
    def settings(self) -> AgentSettings:
        given = super().settings
        return msgspec.structs.replace(given, sources=msgspec.structs.replace(given.sources, strategy=self.strategy))

    async def policy(self, spec: dict[str, Any]) -> None:
        await self.kube.create(GPU_POLICIES, gpu_policy(spec, "all"))

    async def until_policy(self, kind: str, holds: Callable[[Object], bool]) -> Object:
        """Return the policy's condition of this kind as soon as it is so."""
        found: Object = {}
        for _ in range(500):
            each = await self.kube.get(GPU_POLICIES, "all") or {}
            conditions = (each.get("status") or {}).get("conditions", ())
            found = next((one for one in conditions if one["type"] == kind), {})
            if found and holds(found):
                return found
            await asyncio.sleep(0.02)
        pytest.fail(f"condition {kind}: {found}")

    async def until_condition(self) -> Object:
        """Return the node's condition about its configuration as soon as there is one."""
        node = await self.until(lambda node: bool(configuration(node)))
        return configuration(node)[0]


def configuration(node: Object) -> list[Object]:
    conditions = (node.get("status") or {}).get("conditions") or []
    return [each for each in conditions if each["type"] == "TesseraConfigurationApplied"]


@contextlib.asynccontextmanager
async def started(folder: Path, *gpus: str) -> AsyncIterator[Started]:
    """Make a machine with a controller beside it."""
    async with MemoryKubelet(folder) as kubelet:
        machine = Started(driver=WatchedDriver.of(*gpus), kube=MemoryKube(), kubelet=kubelet, folder=folder)
        (folder / "sharing").mkdir()
        (folder / "state").mkdir()
        await machine.kube.create(NODES, {"metadata": {"name": "n1"}})
        controller = asyncio.create_task(Controller(CONTROLLER, machine.kube).run())
        try:
            yield machine
        finally:
            controller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await controller


# sentence: (--strategy, flags of the sharing file, GPUPolicy, label of the layout)
SINGLE: dict[str, tuple[Strategy | None, str, dict[str, Any], str | None]] = {
    "by the policy, which fixes the layout": (None, "", {"migStrategy": "single", **SLICES}, None),
    "by the policy, with the layout by the label": (None, "", {"migStrategy": "single"}, "all-1g.10gb"),
    "by the option, with the layout by the label": ("single", "", {}, "all-1g.10gb"),
    "by the sharing file": ("mixed", "flags: {migStrategy: single}", SLICES, None),
}
WHOLE_JOB = "by the policy, which fixes the layout"
"""Where eight GPUs are made into slices, and all of the Job's pods are started that run at once."""


@pytest.mark.parametrize("case", SINGLE)
async def test_slices_are_gpus_under_strategy_single_with_a_policy_in_force(socket_folder: Path, case: str) -> None:
    strategy, flags, spec, label = SINGLE[case]
    gpus = 8 if case == WHOLE_JOB else 1
    async with started(socket_folder, *["H100-80GB"] * gpus) as machine:
        machine.strategy = strategy
        if flags:
            (machine.folder / "sharing" / "default").write_text(SHARING.format(flags=flags))
        await machine.policy(spec)
        await machine.label(config=label)
        async with machine.agent():
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 7 * gpus, deadline_s=30)
            assert machine.kubelet.allocatable("nvidia.com/mig-1g.10gb") == 0
            uuids = set()
            for number in range(7 * gpus):
                await machine.pod(f"p{number}", {"nvidia.com/gpu": 1})
                uuids.add((await machine.start(f"p{number}", "nvidia.com/gpu"))["NVIDIA_VISIBLE_DEVICES"])
            assert len(uuids) == 7 * gpus
            await machine.until_policy("Ready", lambda found: found["reason"] == "InForce")


async def test_a_catch_all_policy_says_which_label_it_overrides(socket_folder: Path) -> None:
    async with started(socket_folder, "A100-40GB", "A100-40GB") as machine:
        (machine.folder / "sharing" / "time-sliced").write_text(SHARING.format(flags=""))
        await machine.label(**{PLUGIN_CONFIG: "time-sliced"})
        async with machine.agent():
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 6)
            assert configuration(await machine.node()) == []
            await machine.policy({})
            found = await machine.until_condition()
            assert (found["status"], found["reason"]) == ("False", "Overridden")
            label = "label nvidia.com/device-plugin.config=time-sliced"
            assert f"{label} has no effect on the sharing of GPUs 0, 1: GPUPolicy all decides" in found["message"]
            overrides = await machine.until_policy("Overrides", lambda found: found["status"] == "True")
            assert overrides["message"].startswith(f"on n1: {label} has no effect")
            await machine.until_policy("Ready", lambda found: found["reason"] == "InForce")
            await machine.until(lambda node: annotations_of(node).get(APPLIED, "").startswith("gpupolicy/all@"))
            await machine.label(**{PLUGIN_CONFIG: None})
            (machine.folder / "sharing" / "time-sliced").unlink()
            await machine.until(lambda node: configuration(node) == [])
            await machine.until_policy("Overrides", lambda found: found["status"] == "False")


async def test_a_unit_that_is_too_small_makes_the_policy_not_ready(socket_folder: Path) -> None:
    async with started(socket_folder, "A100-40GB", "A100-40GB") as machine:
        await machine.policy({"unit": "MiB"})
        async with machine.agent():
            ready = await machine.until_policy("Ready", lambda found: found["reason"] == "Withheld")
            want = "tessera.dev/gpu-memory is not offered: 81920 units of 1 MiB exceed the kubelet's limit of 40000"
            assert ready["status"] == "False"
            assert want in ready["message"]
            assert "set unit: GiB" in ready["message"]
            assert want in (await machine.until_condition())["message"]
            assert machine.kubelet.allocatable("tessera.dev/gpu-memory") == 0
            await machine.kube.patch(GPU_POLICIES, "all", {"spec": {"unit": "GiB"}})
            await machine.until_policy("Ready", lambda found: found["reason"] == "InForce")
            await machine.kubelet.until_allocatable("tessera.dev/gpu-memory", 80)
            await machine.until(lambda node: configuration(node) == [])


async def test_a_layout_that_the_gpus_cannot_have_makes_the_policy_not_ready(socket_folder: Path) -> None:
    async with started(socket_folder, "T4", "T4") as machine, machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.policy(SLICES)
        ready = await machine.until_policy("Ready", lambda found: found["reason"] == "Refused")
        assert "'all-1g.10gb' is not a MIG configuration of T4" in ready["message"]
        assert "all-1g.10gb" in (await machine.until_condition())["message"]
        assert machine.kubelet.allocatable("nvidia.com/gpu") == 2


async def test_a_node_whose_files_were_never_in_force_says_why(socket_folder: Path) -> None:
    async with started(socket_folder, "A100-40GB") as machine:
        (machine.folder / "policy.yaml").write_text("kind: Nothing")
        async with machine.agent():
            found = await machine.until_condition()
            assert (found["status"], found["reason"]) == ("False", "Refused")


async def test_the_file_of_the_node_makes_the_policy_not_ready(socket_folder: Path) -> None:
    async with started(socket_folder, "A100-40GB") as machine:
        (machine.folder / "policy.yaml").write_text("apiVersion: tessera.dev/v1alpha1\nkind: NodePolicy\n")
        await machine.policy({})
        async with machine.agent():
            ready = await machine.until_policy("Ready", lambda found: found["reason"] == "Overridden")
            assert "GPUPolicy all has no effect on this node: node policy file" in ready["message"]
            found = await machine.kube.get(GPU_NODES, "n1")
            assert found is not None
            assert [each["kind"] for each in found["status"]["impaired"]] == ["Overridden"]
