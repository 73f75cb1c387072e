"""`tessera run`: a command on a part of a GPU, as a Job."""

import asyncio
import re
import secrets
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from tessera.api.kubernetes.jobs import JobRequest, code_secret, job_object
from tessera.api.kubernetes.podspecs import ISOLATION
from tessera.api.scheduler.configuration import SCHEDULER_NAME
from tessera.cli.livecluster import Place, connected, kubeconfig_options, observe
from tessera.cli.options import refuse_without
from tessera.cli.printing import yaml_text
from tessera.cli.work.codefolder import archive_folder
from tessera.cli.work.following import ended_or_interrupted, follow_job
from tessera.clients.kube import JOBS, SECRETS, Forbidden, Kube, Object, name_of
from tessera.core.explain.podexplanation import explain_pod
from tessera.core.workload.need import Isolation, PodKey
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, MODEL_RESOURCE
from tessera.errors import InvalidInput, TesseraError, shown

__all__ = ["run"]

_INTERRUPTED = 130
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_LONGEST_PREFIX = 40
_SUFFIX_BYTES = 4
_FOLDER = click.Path(path_type=Path)


class _Given(TypedDict):
    """The options as click passes them."""

    command: tuple[str, ...]
    image: str
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


@click.command(
    epilog="""
\b
Examples:
  tessera run --image pytorch/pytorch --gpu-memory 10 -- python train.py
  tessera run --image pytorch/pytorch --gpu-memory 10 --code . -- python train.py
  tessera run --image pytorch/pytorch --slice 1g.10gb --model llama -d
  tessera run --image pytorch/pytorch --gpu-memory 10 --isolation hardware --dry-run > job.yaml
"""
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--image", required=True, help="Container image.")
@click.option("--name", default="", help="Name of the Job.  [default: made from the image]")
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Its namespace.")
@click.option("--gpu-memory", type=click.IntRange(1), metavar="GIB", help="GPU memory it needs.")
@click.option("--gpu-compute", type=click.IntRange(1, 100), metavar="PERCENT", help="Part of a GPU's compute.")
@click.option("--gpus", type=click.IntRange(1), help="Whole GPUs; with --gpu-memory, of how many it needs so much.")
@click.option("--slice", default="", metavar="PROFILE", help="MIG instance of this profile: 1g.10gb.")
@click.option("--isolation", type=click.Choice([str(each) for each in Isolation]), help="How shares are kept apart.")
@click.option("--model", multiple=True, metavar="NAME", help="ModelCache it reads; repeatable.")
@click.option("--code", type=_FOLDER, metavar="FOLDER", help="Folder to bring along; the command starts in a copy.")
@click.option("--cpu", default="", help="CPU limit: 4, 500m.")
@click.option("--memory", default="", help="Memory limit: 16Gi.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeatable.")
@click.option("--env-secret", multiple=True, metavar="NAME=SECRET/KEY", help="The same from a Secret; repeatable.")
@click.option("--queue", default="", metavar="NAME", help="Kueue's LocalQueue that admits it.")
@click.option("--dry-run", is_flag=True, help="Print the objects, and say where it would run; submit nothing.")
@click.option("-d", "--detach", is_flag=True, help="Submit, print the name, and end.")
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C deletes the Job; else it only stops following it.")
@kubeconfig_options
def run(**given: Unpack[_Given]) -> int:
    """Run COMMAND in IMAGE on a part of a GPU: submit a Job, say why it waits, follow its log.

    Ends with the exit code of the command. Ctrl-C leaves the Job running: `tessera attach` follows it again, `tessera
    stop` ends it. Needs the right to create Jobs and read pods and logs in one namespace, as Kubernetes' role `edit`.

    The folder of --code goes into a Secret of the Job, at most 1 MiB compressed, without what its .tesseraignore or
    .gitignore names. The image must have tar and gzip.
    """
    asked = _request(given)
    archive = archive_folder(given["code"]) if given["code"] else None
    body = job_object(asked)
    if given["dry_run"]:
        objects = ([] if archive is None else [code_secret(asked, archive)]) + [body]
        click.echo(b"---\n".join(map(yaml_text, objects)), nl=False)
    place = Place(kubeconfig=given["kubeconfig"], context=given["context"])
    names: list[str] = []

    async def work() -> int:
        if not given["detach"]:
            click.echo(await _forecast(place, body), err=True)
        if given["dry_run"]:
            return 0
        async with connected(place) as kube:
            creating = asyncio.ensure_future(_submit(kube, asked, archive))
            try:
                await asyncio.shield(creating)
            finally:  # Ctrl-C meanwhile is about a Job that may be there
                names.append(await creating)
            if given["detach"]:
                click.echo(names[0])
                return 0
            return await follow_job(kube, names[0], given["namespace"])

    return ended_or_interrupted(work(), lambda: _interrupted(place, names, given))


async def _submit(kube: Kube, asked: JobRequest, archive: bytes | None) -> str:
    """Create a Job and what belongs to it, or nothing; return its name."""
    job = await kube.create(JOBS, job_object(asked))
    name = name_of(job)[1]
    if archive is not None:
        try:
            await kube.create(SECRETS, code_secret(asked, archive, job))
        except TesseraError:
            await kube.delete(JOBS, name, namespace=asked.namespace)
            raise
    return name


async def _interrupted(place: Place, names: list[str], given: _Given) -> int:
    """Say how to go on with a Job that is followed no more, or delete it."""
    for name in names:
        again = f"{name} -n {given['namespace']}"
        if given["cancel_on_interrupt"]:
            async with connected(place) as kube:
                await kube.delete(JOBS, name, namespace=given["namespace"])
            click.echo(f"deleted {again}", err=True)
        else:
            click.echo(f"it goes on; tessera attach {again}, tessera stop {again}", err=True)
    return _INTERRUPTED


def _request(given: _Given) -> JobRequest:
    """Return what is asked for.

    Raises:
        InvalidInput: options that make no sense, alone or together.

    """
    for option in ("--gpu-compute", "--isolation"):
        refuse_without(option, "--gpu-memory")
    if given["slice"] and (given["gpu_memory"] or given["gpus"]):
        raise InvalidInput("--slice", found="--gpu-memory or --gpus as well", expected="one way to say how much")
    limits: dict[str, str] = {}
    if given["gpu_memory"]:
        amounts = {GPU_MEMORY: given["gpu_memory"], GPU_COMPUTE: given["gpu_compute"], GPU_COUNT: given["gpus"]}
        limits |= {resource: str(amount) for resource, amount in amounts.items() if amount}
    elif given["gpus"]:
        limits["nvidia.com/gpu"] = str(given["gpus"])
    if given["slice"]:
        limits[f"nvidia.com/mig-{given['slice'].replace('+', '.')}"] = "1"
    limits |= {f"{MODEL_RESOURCE}{each}": "1" for each in given["model"]}
    limits |= {kind: amount for kind, amount in (("cpu", given["cpu"]), ("memory", given["memory"])) if amount}
    prefix = _NOT_IN_NAMES.sub("-", given["image"].rpartition("/")[2].partition(":")[0].partition("@")[0].lower())
    prefix = f"{prefix.strip('-')[:_LONGEST_PREFIX] or 'run'}-"
    return JobRequest(
        name=given["name"],
        prefix=prefix,
        namespace=given["namespace"],
        image=given["image"],
        command=given["command"],
        limits=limits,
        annotations={ISOLATION: given["isolation"]} if given["isolation"] else {},
        scheduler=SCHEDULER_NAME if given["gpu_memory"] else "",
        env=tuple(_pair("--env", each) for each in given["env"]),
        env_secrets=tuple(_secret(each) for each in given["env_secret"]),
        queue=given["queue"],
        code=f"{prefix}code-{secrets.token_hex(_SUFFIX_BYTES)}" if given["code"] else "",
    )


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


async def _forecast(place: Place, body: Object) -> str:
    """Return where a Job's pod would run now, or why it would wait."""
    template: dict[str, Any] = body["spec"]["template"]
    named = {"name": "this", "namespace": body["metadata"]["namespace"], "uid": "this"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **named},
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
    try:
        async with connected(place) as kube:
            found = explain_pod(await observe(kube, pod), PodKey(f"{named['namespace']}/this"))
    except Forbidden as error:
        return f"where it would run is not known ({error.found}): the ClusterRole tessera-viewer lets you see it"
    except TesseraError as error:
        return f"where it would run is not known: {error}"
    return "; ".join(found.sentences) if found is not None else ""
