"""The Terraform module: real OpenTofu reads, validates and tests it, with a stand-in for Google's provider."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.googleprovider import google_provider
from testbed.__main__ import building
from testbed.programs import OPENTOFU, programs

pytestmark = pytest.mark.anyio
FOLDER = Path(__file__).parents[1] / "deploy" / "terraform"
EXAMPLE = Path("gke", "examples", "shared-gpus")


@pytest.fixture(scope="session")
def opentofu(pytestconfig: pytest.Config) -> Path:
    """Return the real OpenTofu, building it the first time; the build is shown."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled(), building(Console(stderr=True)) as report:
        return programs(report, modules=OPENTOFU) / "tofu"


class Tofu:
    """OpenTofu in a copy of our modules, with the stand-in for Google's provider."""

    def __init__(self, program: Path, folder: Path, providers: str) -> None:
        self.folder = folder
        self._program = program
        settings = folder / "settings"
        settings.touch()
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "TOFU_"))}
        offline = {"TF_CLI_CONFIG_FILE": str(settings), "CHECKPOINT_DISABLE": "1"}
        self._environment = {**mine, **offline, "TF_REATTACH_PROVIDERS": providers}

    async def run(self, module: Path, *command: str) -> tuple[int | None, str]:
        """Return the exit status and what it prints, as one line."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            *command,
            "-no-color",
            cwd=self.folder / module,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
        return process.returncode, " ".join(printed.decode().replace("│", " ").split())


@pytest.fixture
async def tofu(opentofu: Path, tmp_path: Path, socket_folder: Path) -> AsyncIterator[Tofu]:
    """Give OpenTofu in modules that are initialized."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    async with google_provider(socket_folder) as providers:
        one = Tofu(opentofu, tmp_path, providers)
        status, printed = await one.run(EXAMPLE, "init", "-input=false")
        assert status == 0, printed
        status, printed = await one.run(Path("gke"), "init", "-input=false")
        assert status == 0, printed
        yield one


async def test_files_are_formatted_and_valid_and_the_modules_own_tests_pass(tofu: Tofu) -> None:
    for module, command in (
        (Path(), ("fmt", "-check", "-recursive")),
        (Path("gke"), ("validate",)),
        (EXAMPLE, ("validate",)),
    ):
        status, printed = await tofu.run(module, *command)
        assert status == 0, f"{module} {command[0]}: {printed}"
    assert "2 passed, 0 failed" in (await tofu.run(Path("gke"), "test"))[1]


async def test_the_example_is_accepted(tofu: Tofu) -> None:
    """Its pools meet every validation: the plan goes as far as asking for what the stand-in does not do."""
    status, printed = await tofu.run(
        EXAMPLE, "plan", "-input=false", "-refresh=false", "-var=project_id=a", "-var=cluster=b"
    )
    assert status == 1
    assert "Invalid value" not in printed
    pools = re.findall(r"machine_type +=", (FOLDER / EXAMPLE / "main.tf").read_text())
    assert printed.count("PlanResourceChange") == len(pools)


async def test_the_pool_of_the_walk_through_with_vllm_is_accepted(tofu: Tofu) -> None:
    page = FOLDER.parents[1] / "docs" / "walkthroughs" / "vllm-on-3g40gb.md"
    (block,) = re.findall(r"^```hcl\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    folder = tofu.folder / "page"
    folder.mkdir()
    (folder / "main.tf").write_text(block.replace("./deploy/terraform/gke", "../gke"))
    assert (await tofu.run(Path("page"), "fmt", "-check"))[0] == 0
    status, printed = await tofu.run(Path("page"), "init", "-input=false")
    assert status == 0, printed
    status, printed = await tofu.run(Path("page"), "plan", "-input=false", "-refresh=false")
    assert "Invalid value" not in printed
    assert printed.count("PlanResourceChange") == 1, printed


async def test_an_argument_that_the_provider_lacks_is_refused(tofu: Tofu) -> None:
    file = tofu.folder / "gke" / "main.tf"
    file.write_text(file.read_text().replace("gpu_partition_size =", "partition_size     ="))
    status, printed = await tofu.run(Path("gke"), "validate")
    assert status == 1
    assert 'An argument named "partition_size" is not expected here' in printed


GKE = {"tessera": False}
SHARED = {**GKE, "gpu_sharing_strategy": "TIME_SHARING", "max_shared_clients_per_gpu": 4}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "partitions of both": ({"gpu_partition_size": "1g.10gb"}, "Leave them out, or set tessera = false"),
    "sharing by both": ({**SHARED, "tessera": True}, "Leave them out, or set tessera = false"),
    "a driver by both": ({"gpu_driver_version": "LATEST"}, "Leave them out, or set tessera = false"),
    "three GPUs": ({"accelerator_count": 3}, "1, 2, 4, 8 or 16"),
    "half a profile": ({**GKE, "gpu_partition_size": "1g"}, "`tessera profiles H100-80GB` lists them"),
    "no such sharing": ({**SHARED, "gpu_sharing_strategy": "VGPU"}, "TIME_SHARING or MPS"),
    "sharing among how many": ({**GKE, "gpu_sharing_strategy": "MPS"}, "belong together"),
    "sharing how": ({**GKE, "max_shared_clients_per_gpu": 4}, "belong together"),
    "sharing among one": ({**SHARED, "max_shared_clients_per_gpu": 1}, "from 2 to 48"),
    "sharing among too many": ({**SHARED, "max_shared_clients_per_gpu": 49}, "from 2 to 48"),
    "an empty sharing": ({**SHARED, "gpu_sharing_strategy": ""}, "TIME_SHARING or MPS"),
    "no such driver": ({**GKE, "gpu_driver_version": "INSTALLATION_DISABLED"}, "DEFAULT or LATEST"),
    "fewer than the least": ({"min_count": 2}, "at most max_count"),
    "few pods": ({"max_pods_per_node": 4}, "from 8 to 256"),
    "a taint in Kubernetes' words": (
        {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
        "as Google's API has them",
    ),
}


async def test_pools_that_cannot_be_are_refused_with_what_to_do(tofu: Tofu) -> None:
    pool = {"machine_type": "a3-highgpu-8g", "accelerator_type": "nvidia-h100-80gb", "accelerator_count": 8}
    missing = {}
    for case, (more, want) in REFUSED.items():
        given = {"project_id": "a", "location": "b", "cluster": "c", "node_pools": {"gpu": {**pool, **more}}}
        (tofu.folder / "gke" / "terraform.tfvars.json").write_text(json.dumps(given))
        status, printed = await tofu.run(Path("gke"), "plan", "-input=false", "-refresh=false")
        if status != 1 or printed.count("Error: Invalid value for variable") != 1 or want not in printed:
            missing[case] = printed
    assert missing == {}


PUBLISHED = {
    "accelerator_count",
    "accelerator_type",
    "auto_repair",
    "auto_upgrade",
    "disk_size_gb",
    "disk_type",
    "gpu_driver_version",
    "gpu_partition_size",
    "gpu_sharing_strategy",
    "image_type",
    "local_nvme_ssd_count",
    "local_ssd_ephemeral_storage_count",
    "machine_type",
    "max_count",
    "max_pods_per_node",
    "max_shared_clients_per_gpu",
    "min_count",
    "node_count",
    "node_locations",
    "placement_policy",
    "spot",
}
"""Source: terraform-google-modules/terraform-google-kubernetes-engine at bb176b21, README, node_pools."""


def test_fields_of_a_pool_are_called_as_in_googles_module_and_explained() -> None:
    text = (FOLDER / "gke" / "variables.tf").read_text()
    fields = re.findall(r"^    (\w+) += (?:optional\(|string|number)", text, re.MULTILINE)
    assert set(fields) - PUBLISHED == {"tessera", "labels", "taints"}
    readme = (FOLDER / "gke" / "README.md").read_text()
    assert [field for field in fields if f"`{field}`" not in readme] == []
