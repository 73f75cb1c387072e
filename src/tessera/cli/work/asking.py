"""What `tessera run` and `tessera notebook` have in common: how work asks for an image and a part of a GPU."""

import re
import secrets
from pathlib import Path
from typing import TypedDict

import click

from tessera.api.kubernetes.jobs import ARCHIVE, NOTEBOOK_KEY, JobRequest
from tessera.api.kubernetes.podspecs import ISOLATION
from tessera.api.scheduler.configuration import SCHEDULER_NAME
from tessera.cli.livecluster import Place, kubeconfig_options
from tessera.cli.options import refuse_without, with_options
from tessera.cli.work.codefolder import archive_folder
from tessera.cli.work.environments import find_environment
from tessera.core.workload.need import Isolation
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, MODEL_RESOURCE
from tessera.errors import InvalidInput, shown

__all__ = ["Asked", "asking_options", "place_of", "request_of"]

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_LONGEST_PREFIX = 40
_SUFFIX_BYTES = 4
_TOKEN_BYTES = 24
_FOLDER = click.Path(path_type=Path)


class Asked(TypedDict):
    """The options that both have, as click passes them."""

    image: str
    environment: str
    name: str
    namespace: str
    gpu_memory: int | None
    gpu_compute: int | None
    gpus: int | None
    slice: str
    isolation: str | None
    model: tuple[str, ...]
    cpu: str
    memory: str
    env: tuple[str, ...]
    env_secret: tuple[str, ...]
    queue: str
    code: Path | None
    dry_run: bool
    detach: bool
    cancel_on_interrupt: bool
    kubeconfig: Path | None
    context: str | None


asking_options = with_options(
    click.option("--image", default="", help="Container image."),
    click.option("-e", "--environment", default="", metavar="NAME", help="An image by name: tessera environments."),
    click.option("--name", default="", help="Name of the Job.  [default: made from environment or image]"),
    click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Its namespace."),
    click.option("--gpu-memory", type=click.IntRange(1), metavar="GIB", help="GPU memory it needs."),
    click.option("--gpu-compute", type=click.IntRange(1, 100), metavar="PERCENT", help="Part of a GPU's compute."),
    click.option(
        "--gpus", type=click.IntRange(1), help="Number of GPUs: whole ones, or with --gpu-memory that much of each."
    ),
    click.option("--slice", default="", metavar="PROFILE", help="MIG instance of this profile: 1g.10gb."),
    click.option(
        "--isolation",
        type=click.Choice([str(each) for each in Isolation]),
        help="Weakest isolation that the pod accepts.",
    ),
    click.option("--model", multiple=True, metavar="NAME", help="ModelCache it reads; repeatable."),
    click.option(
        "--code", type=_FOLDER, metavar="FOLDER", help="Folder to upload; the command starts in a copy of it."
    ),
    click.option("--cpu", default="", help="CPU limit: 4, 500m."),
    click.option("--memory", default="", help="Memory limit: 16Gi."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeatable."),
    click.option("--env-secret", multiple=True, metavar="NAME=SECRET/KEY", help="The same from a Secret; repeatable."),
    click.option("--queue", default="", metavar="NAME", help="Kueue's LocalQueue that admits it."),
    click.option("--dry-run", is_flag=True, help="Print the objects, and say where it would run; submit nothing."),
    click.option("-d", "--detach", is_flag=True, help="Submit, print the name, and end."),
    click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C deletes the Job; else it only stops following."),
    kubeconfig_options,
)
"""Adds the options that both have."""


def place_of(given: Asked) -> Place:
    """Return the cluster that the options name."""
    return Place(kubeconfig=given["kubeconfig"], context=given["context"])


def request_of(
    given: Asked, command: tuple[str, ...], *, notebook: bool = False
) -> tuple[JobRequest, dict[str, bytes]]:
    """Return what is asked for, and the files of its own Secret.

    Raises:
        InvalidInput: options that make no sense, alone or together.

    """
    image, words = _image_of(given, notebook=notebook)
    prefix = f"{_NOT_IN_NAMES.sub('-', words).strip('-')[:_LONGEST_PREFIX] or 'run'}-"
    files: dict[str, bytes] = {}
    if given["code"]:
        files[ARCHIVE] = archive_folder(given["code"])
    if notebook:
        files[NOTEBOOK_KEY] = secrets.token_hex(_TOKEN_BYTES).encode()
    asked = JobRequest(
        name=given["name"],
        prefix=prefix,
        namespace=given["namespace"],
        image=image,
        command=command,
        limits=_limits(given),
        annotations={ISOLATION: given["isolation"]} if given["isolation"] else {},
        scheduler=SCHEDULER_NAME if given["gpu_memory"] else "",
        env=tuple(_pair("--env", each) for each in given["env"]),
        env_secrets=tuple(_secret(each) for each in given["env_secret"]),
        queue=given["queue"],
        secret=f"{prefix}own-{secrets.token_hex(_SUFFIX_BYTES)}" if files else "",
        code=ARCHIVE in files,
        notebook=notebook,
    )
    return asked, files


def _image_of(given: Asked, *, notebook: bool) -> tuple[str, str]:
    """Return the image, and what it is called in names."""
    image, environment = given["image"], given["environment"]
    if bool(image) == bool(environment):
        found = "both" if image else "neither"
        raise InvalidInput(
            "--image and --environment", found=found, hint="give one of them; `tessera environments` lists environments"
        )
    if environment:
        return find_environment(place_of(given), environment, notebook=notebook).image, environment
    return image, image.rpartition("/")[2].partition(":")[0].partition("@")[0].lower()


def _limits(given: Asked) -> dict[str, str]:
    """Return the amounts by resource."""
    for option in ("--gpu-compute", "--isolation"):
        refuse_without(option, "--gpu-memory")
    if given["slice"] and (given["gpu_memory"] or given["gpus"]):
        raise InvalidInput("--slice", found="--gpu-memory or --gpus say how much as well", hint="give one of the three")
    limits: dict[str, str] = {}
    if given["gpu_memory"]:
        amounts = {GPU_MEMORY: given["gpu_memory"], GPU_COMPUTE: given["gpu_compute"], GPU_COUNT: given["gpus"]}
        limits |= {resource: str(amount) for resource, amount in amounts.items() if amount}
    elif given["gpus"]:
        limits["nvidia.com/gpu"] = str(given["gpus"])
    if given["slice"]:
        limits[f"nvidia.com/mig-{given['slice'].replace('+', '.')}"] = "1"
    limits |= {f"{MODEL_RESOURCE}{each}": "1" for each in given["model"]}
    return limits | {kind: amount for kind, amount in (("cpu", given["cpu"]), ("memory", given["memory"])) if amount}


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidInput(option, found=shown(text), expected="NAME=VALUE")
    return name, value


def _secret(text: str) -> tuple[str, str, str]:
    name, value = _pair("--env-secret", text)
    secret, slash, key = value.partition("/")
    if not secret or not slash or not key:
        raise InvalidInput("--env-secret", found=shown(text), expected="NAME=SECRET/KEY")
    return name, secret, key
