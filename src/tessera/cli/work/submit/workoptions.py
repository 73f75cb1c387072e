"""Common parts of `tessera run` and `tessera notebook`: options for an image and a part of a GPU."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import click
import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field
from tessera.api.kubernetes.jobs import CODE_FOLDER, NOTEBOOK_VARIABLE, WorkRequest, job_object
from tessera.api.kubernetes.podspecs import read_need
from tessera.cli.clusteraccess import ClusterSource, kubeconfig_options, namespace_of, namespace_option
from tessera.cli.options import FilledOption, WholeNumber, refuse_without, with_options
from tessera.cli.work.submit.mounts import check_folders, data_of, secrets_of
from tessera.cli.work.submit.ownsecret import with_own_secret
from tessera.cli.work.submit.validation import (
    NameFormat,
    checked,
    checked_cpu,
    checked_memory,
    checked_slice,
    checked_text,
)
from tessera.core.deviceplugin.offers.modeloffers import mount_path
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import GPU_RESOURCE
from tessera.core.workload import units
from tessera.core.workload.need import Isolation
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, MODEL_RESOURCE, SCHEDULER_NAME
from tessera.core.workload.tesseranames import GPU_MODEL, ISOLATION
from tessera.errors import InvalidInput, shown

__all__ = ["Submission", "WorkOptions", "submission_of", "work_options"]

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_LONGEST_PREFIX = 40
_GIB = 1 << 30
_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:e\+?[0-9]+)?) ?(?:([mgt])(i?)b?)?", re.ASCII | re.IGNORECASE)
"""A number of GiB, or an amount with its unit, as people write them."""
_MOST_UID = (1 << 31) - 1
"""Source: k8s.io/apimachinery `pkg/util/validation` (`IsValidUserID`)."""
_FOLDER = click.Path(path_type=Path)


class _Gib(WholeNumber):
    """A whole number of GiB."""

    name = "GiB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, also of an amount with its unit; a part of one is refused with what to write."""
        if (amount := _AMOUNT.fullmatch(str(value))) is None:
            return int(super().convert(value, param, ctx))
        number, letter, binary = amount.groups()
        scale = units.quantity(f"1{letter.upper()}{binary.lower()}", "a unit") / _GIB if letter else 1
        gib = units.quantity(number, "--gpu-memory") * scale
        whole = units.round_up(gib)
        if whole != gib:
            raise InvalidInput(
                "--gpu-memory", found=shown(value), expected="a whole number of GiB", hint=f"write {whole}"
            )
        return int(super().convert(whole, param, ctx))


class WorkOptions(TypedDict):
    """The common options, as click passes them."""

    image: str
    environment: str
    name: str
    namespace: str
    gpu_memory: int | None
    gpu_compute: int | None
    gpus: int | None
    slice: str
    gpu_model: tuple[str, ...]
    isolation: str | None
    model: tuple[str, ...]
    data: tuple[str, ...]
    cpu: str
    memory: str
    user: int | None
    env: tuple[str, ...]
    env_secret: tuple[str, ...]
    secret: tuple[str, ...]
    queue: str
    code: Path | None
    dry_run: bool
    detach: bool
    cancel_on_interrupt: bool
    kubeconfig: Path | None
    context: str | None


work_options = with_options(
    click.option("--image", cls=FilledOption, default="", metavar="IMAGE", help="Container image."),
    click.option(
        "-e",
        "--environment",
        cls=FilledOption,
        default="",
        metavar="NAME",
        help="An image by name: tessera environments.",
    ),
    click.option(
        "--name",
        cls=FilledOption,
        default="",
        metavar="NAME",
        help="Name of the Job.  [default: from environment or image]",
    ),
    namespace_option,
    click.option("--gpu-memory", type=_Gib(1), help="GPU memory in GiB, of each GPU."),
    click.option("--gpu-compute", type=WholeNumber(1, 100), metavar="PERCENT", help="Part of a GPU's compute."),
    click.option(
        "--gpus",
        type=WholeNumber(1),
        metavar="COUNT",
        help="Number of GPUs; with --gpu-memory, that much memory on each.",
    ),
    click.option(
        "--slice", cls=FilledOption, default="", metavar="PROFILE", help="MIG instance of this profile: 1g.10gb."
    ),
    click.option("--gpu-model", multiple=True, metavar="MODEL", help="GPU model it may run on: H100-80GB; repeatable."),
    click.option(
        "--isolation",
        type=click.Choice([str(each) for each in Isolation]),
        help="Weakest isolation that the pod accepts.",
    ),
    click.option("--model", multiple=True, metavar="NAME", help="ModelCache it reads; repeatable."),
    click.option(
        "--data", multiple=True, metavar="NAME", help="Data it reads: a ModelCache, or pvc/CLAIM; repeatable."
    ),
    click.option(
        "--code",
        cls=FilledOption,
        type=_FOLDER,
        metavar="FOLDER",
        help="Folder to upload; the command starts in a copy of it.",
    ),
    click.option("--cpu", cls=FilledOption, default="", metavar="QUANTITY", help="CPU limit: 4, 500m."),
    click.option("--memory", cls=FilledOption, default="", metavar="QUANTITY", help="Memory limit: 16Gi."),
    click.option(
        "--user",
        type=WholeNumber(1, _MOST_UID),
        metavar="UID",
        help="Run as this user ID, without root and capabilities, as Pod Security Standard `restricted` requires.  "
        "[default: the image's user]",
    ),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeatable."),
    click.option(
        "--env-secret",
        multiple=True,
        metavar="NAME=SECRET/KEY",
        help="Environment variable from a key of a Secret; repeatable.",
    ),
    click.option(
        "--secret",
        multiple=True,
        metavar="NAME[:FOLDER]",
        help="Secret whose keys are variables, or files in FOLDER; repeatable.",
    ),
    click.option("--queue", cls=FilledOption, default="", metavar="NAME", help="Kueue LocalQueue to submit to."),
    click.option("--dry-run", is_flag=True, help="Print the objects, and say where it would run; submit nothing."),
    click.option("-d", "--detach", is_flag=True, help="Submit, print the name, and end."),
    click.option(
        "--cancel-on-interrupt", is_flag=True, help="Delete the Job on Ctrl-C; without it, the Job keeps running."
    ),
    kubeconfig_options,
)
"""Adds the common options."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Work, the source of its image, and what to do with it."""

    cluster: ClusterSource
    work: WorkRequest
    files: Mapping[str, bytes]
    """Of the work's own Secret."""
    image: str
    """Empty for that of `environment`."""
    environment: str
    """Name; empty for `image`."""
    dry_run: bool
    """Print the objects, and submit nothing."""
    detach: bool
    """Submit, print the name, and end."""
    delete_on_interrupt: bool
    """Delete the Job on SIGINT or SIGTERM."""


def submission_of(options: WorkOptions, command: tuple[str, ...], *, notebook: bool = False) -> Submission:
    """Return what the options say: the requested work and its code.

    Raises:
        InvalidInput: invalid or contradictory options, or a folder of code that cannot be sent.

    """
    cluster = ClusterSource(kubeconfig=options["kubeconfig"], context=options["context"])
    image, environment = _image_of(options)
    work, files = with_own_secret(_work_of(options, command, notebook=notebook), options["code"])
    # The namespace comes last: a wrong option is said before a missing kubeconfig.
    work = msgspec.structs.replace(work, namespace=_namespace(options, cluster))
    return Submission(
        cluster=cluster,
        work=work,
        files=files,
        image=image,
        environment=environment,
        dry_run=options["dry_run"],
        detach=options["detach"],
        delete_on_interrupt=options["cancel_on_interrupt"],
    )


def _work_of(options: WorkOptions, command: tuple[str, ...], *, notebook: bool) -> WorkRequest:
    """Return the requested work, without its own Secret and its namespace.

    Raises:
        InvalidInput: invalid or contradictory options.

    """
    refuse_without("--gpu-compute", "--gpu-memory")
    refuse_without(
        "--isolation",
        "--gpu-memory",
        "MIG instances and whole GPUs always have hardware isolation",
    )
    data, (variables, folders) = data_of(options["data"]), secrets_of(options["secret"])
    check_folders(
        (
            *((("--code", CODE_FOLDER),) if options["code"] else ()),
            *((f"ModelCache {each}", mount_path(each)) for each in (*options["model"], *data.caches)),
            *((f"--data pvc/{name}", folder) for name, folder in data.claims),
            *((f"--secret {name}:{folder}", folder) for name, folder in folders),
        )
    )
    env = (*(_pair("--env", each) for each in options["env"]), *data.env)
    env_secrets = tuple(_secret(each) for each in options["env_secret"])
    _check_variables((*(name for name, _ in env), *(name for name, _, _ in env_secrets)))
    limits = _limits(options) | data.limits
    work = WorkRequest(
        name=options["name"] and checked("--name", options["name"], NameFormat.LABEL),
        prefix=_prefix(options),
        command=tuple(checked_text("the command", each) for each in command),
        limits=limits,
        annotations=_annotations(options),
        scheduler=SCHEDULER_NAME if options["gpu_memory"] or options["gpu_model"] else "",
        env=env,
        env_secrets=env_secrets,
        secrets=variables,
        secret_folders=folders,
        claims=data.claims,
        queue=options["queue"] and checked("--queue", options["queue"], NameFormat.LABEL),
        notebook=notebook,
        user=options["user"] or 0,
        namespace="",
    )
    _check_need(work)
    return work


def _check_need(work: WorkRequest) -> None:
    """Refuse a pod that the scheduler's server would refuse on every node, whatever its image is."""
    template = job_object(work.in_image("any"))["spec"]["template"]
    pod = Field(Document(source="the Job", number=1, data=template, first_line=1), template)
    try:
        read_need(pod)
    except InvalidInput as error:
        # a line of a Job that nobody has seen yet says nothing
        subject = error.subject.replace(pod.place, "the Job", 1)
        raise InvalidInput(subject, found=error.found, expected=error.expected, hint=error.hint) from error


def _image_of(options: WorkOptions) -> tuple[str, str]:
    """Return the image and the environment, of which one is empty."""
    image, environment = options["image"], options["environment"]
    if image and environment:
        raise InvalidInput("--image and --environment", found="both", hint="give one of them")
    if not image and not environment:
        hint = "give one of them; `tessera environments` lists environments"
        raise InvalidInput("--image or --environment", found="neither is given", hint=hint)
    return image and checked("--image", image, NameFormat.IMAGE), environment


def _prefix(options: WorkOptions) -> str:
    """Return the beginning of the names of a Job and its Secret: the environment or image in short."""
    name = options["image"].rpartition("/")[2].partition(":")[0].partition("@")[0].lower()
    words = _NOT_IN_NAMES.sub("-", options["environment"] or name).strip("-")
    return f"{words[:_LONGEST_PREFIX] or 'run'}-"


def _limits(options: WorkOptions) -> dict[str, str]:
    """Return the amounts by resource."""
    if options["slice"] and (options["gpu_memory"] or options["gpus"]):
        other = "--gpu-memory" if options["gpu_memory"] else "--gpus"
        raise InvalidInput(f"--slice and {other}", found="both", hint="give one of them")
    limits: dict[str, str] = {}
    if options["gpu_memory"]:
        amounts = {GPU_MEMORY: options["gpu_memory"], GPU_COMPUTE: options["gpu_compute"], GPU_COUNT: options["gpus"]}
        limits |= {resource: str(amount) for resource, amount in amounts.items() if amount}
    elif options["gpus"]:
        limits[GPU_RESOURCE] = str(options["gpus"])
    if options["slice"]:
        limits[checked_slice("--slice", options["slice"])] = "1"
    limits |= {f"{MODEL_RESOURCE}{checked('--model', each, NameFormat.LABEL)}": "1" for each in options["model"]}
    if options["cpu"]:
        limits["cpu"] = checked_cpu("--cpu", options["cpu"])
    if options["memory"]:
        limits["memory"] = checked_memory("--memory", options["memory"])
    return limits


def _annotations(options: WorkOptions) -> dict[str, str]:
    """Return what the pod requires of its GPU besides amounts.

    Raises:
        InvalidInput: an unknown GPU model, or one without a GPU.

    """
    annotations = {ISOLATION: options["isolation"]} if options["isolation"] else {}
    if not options["gpu_model"]:
        return annotations
    if not (options["gpu_memory"] or options["gpus"] or options["slice"]):
        hint = "give --gpu-memory, --gpus or --slice as well"
        raise InvalidInput("--gpu-model", found="the pod requests no GPU", hint=hint)
    for each in options["gpu_model"]:
        try:
            model(each)
        except InvalidInput as error:
            raise InvalidInput("--gpu-model", found=error.found, expected=error.expected, hint=error.hint) from error
    return annotations | {GPU_MODEL: ", ".join(options["gpu_model"])}


def _namespace(options: WorkOptions, cluster: ClusterSource) -> str:
    try:
        return checked("--namespace", namespace_of(cluster, options["namespace"]), NameFormat.LABEL)
    except InvalidInput:
        if options["namespace"] or not options["dry_run"]:
            raise
        return "default"  # to print the objects no cluster is needed


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidInput(option, found=shown(text), expected="NAME=VALUE")
    return checked(option, name, NameFormat.VARIABLE), checked_text(option, value)


def _check_variables(names: tuple[str, ...]) -> None:
    if NOTEBOOK_VARIABLE in names:
        hint = "give the variable another name"
        raise InvalidInput(
            f"variable {NOTEBOOK_VARIABLE}", found="tessera notebook sets it, with a token of its own", hint=hint
        )
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InvalidInput(f"variable {name}", found="it is set twice", hint="leave out one of them")


def _secret(text: str) -> tuple[str, str, str]:
    name, value = _pair("--env-secret", text)
    secret, slash, key = value.partition("/")
    if not secret or not slash or not key:
        raise InvalidInput("--env-secret", found=shown(text), expected="NAME=SECRET/KEY")
    return name, checked("--env-secret", secret, NameFormat.OBJECT), checked("--env-secret", key, NameFormat.KEY)
