"""Submits a Job: finds its image, says where it would run, creates it with its Secret, follows it."""

import asyncio
import datetime as dt
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import click
import msgspec

from tessera.api.kubernetes.jobs import (
    ARCHIVE,
    BEGUN,
    BY_RUN,
    LEFT_AFTER_S,
    NOTEBOOK_KEY,
    JobRequest,
    job_object,
    own_secret,
    owned_by,
    secret_of,
)
from tessera.api.tessera.v1alpha1.environments import choose_environment
from tessera.cli.clusteraccess import ClusterSource, connected
from tessera.cli.printing import yaml_text
from tessera.cli.work.codefolder import archive_folder
from tessera.cli.work.environments import read_environments
from tessera.cli.work.following import INTERRUPTED, ended_or_interrupted, say
from tessera.cli.work.workoptions import WorkOptions, place_of
from tessera.clients.kube import JOBS, NODES, SECRETS, Forbidden, Kube, Object, Selection, Unanswered, name_of
from tessera.errors import TesseraError, shown

__all__ = ["Follow", "create_job", "forecast_job", "settle_secrets", "submit", "with_own_secret"]

_SUFFIX_BYTES = 4
_TOKEN_BYTES = 24
_NAMED = 5
_NO_NODE = Selection(fields=(("metadata.name", "none"),))
"""What may be read is known by reading nothing."""
Follow = Callable[[Kube, str], Awaitable[int]]
"""Follows the Job of this name to its end, and returns the exit code of its command."""


def with_own_secret(given: WorkOptions, asked: JobRequest) -> tuple[JobRequest, dict[str, bytes]]:
    """Return the work with its own Secret, if it needs one, and the files of that: its code, what opens its notebook.

    Raises:
        InvalidInput: the folder of its code cannot be read or is too large.

    """
    files: dict[str, bytes] = {}
    if given["code"]:
        archive = archive_folder(given["code"])
        files[ARCHIVE] = archive.content
        if archive.left_out:
            more = f" and {left} more" if (left := len(archive.left_out) - _NAMED) > 0 else ""
            named = ", ".join(map(shown, archive.left_out[:_NAMED]))
            say(f"left out, as they may contain credentials: {named}{more}")
    if asked.notebook:
        files[NOTEBOOK_KEY] = secrets.token_hex(_TOKEN_BYTES).encode()
    own = f"{asked.prefix}own-{secrets.token_hex(_SUFFIX_BYTES)}" if files else ""
    return msgspec.structs.replace(asked, own_secret=own, code=ARCHIVE in files), files


def submit(given: WorkOptions, asked: JobRequest, files: Mapping[str, bytes], follow: Follow) -> int:
    """Do with a Job what the options say, and return the exit code.

    Args:
        given: the options.
        asked: the Job.
        files: of its own Secret.
        follow: the next action.

    """
    place, environment, names = place_of(given), given["environment"], list[str]()

    async def work() -> int:
        if given["dry_run"]:
            return await _show(place, environment, asked, files)
        async with connected(place) as kube:
            found = await _with_image(kube, environment, asked)
            if not given["detach"]:
                click.echo(await forecast_job(kube, job_object(found)), err=True)
            creating = asyncio.ensure_future(create_job(kube, found, files))
            try:
                await asyncio.shield(creating)
            finally:  # after Ctrl-C the Job may exist
                names.append(await creating)
            if given["detach"]:
                click.echo(names[0])
                return 0
            return await follow(kube, names[0])

    return ended_or_interrupted(
        work(), lambda: _interrupted(place, names, asked.namespace, delete=given["cancel_on_interrupt"])
    )


async def _with_image(kube: Kube, environment: str, asked: JobRequest) -> JobRequest:
    """Return the work with the image of its environment; where none is named, as it is."""
    if not environment:
        return asked
    found = choose_environment(await read_environments(kube), environment, notebook=asked.notebook)
    return msgspec.structs.replace(asked, image=found.image)


async def _show(place: ClusterSource, environment: str, asked: JobRequest, files: Mapping[str, bytes]) -> int:
    """Print the objects, and say where the Job would run; without an environment no cluster is needed."""
    if not environment:
        _print_objects(asked, files)
    try:
        async with connected(place) as kube:
            if environment:
                asked = await _with_image(kube, environment, asked)
                _print_objects(asked, files)
            click.echo(await forecast_job(kube, job_object(asked)), err=True)
    except TesseraError as error:
        if environment:
            raise
        click.echo(f"no forecast: {error}", err=True)
    return 0


def _print_objects(asked: JobRequest, files: Mapping[str, bytes]) -> None:
    objects = ([own_secret(asked, files)] if files else []) + [job_object(asked)]
    click.echo(b"---\n".join(map(yaml_text, objects)), nl=False)


async def create_job(kube: Kube, asked: JobRequest, files: Mapping[str, bytes]) -> str:
    """Create a Job and its own Secret, or neither; return its name.

    The Secret comes first, so that no pod waits for a missing one, wherever this process ends.
    """
    if not files:
        return name_of(await kube.create(JOBS, job_object(asked)))[1]
    secret = await kube.create(SECRETS, own_secret(asked, files, begun=True))
    try:
        job = await kube.create(JOBS, job_object(asked))
    except Unanswered:  # the Job may exist and need its Secret: the next submission checks
        raise
    except TesseraError:
        await _without_secret(kube, asked)
        raise
    name = name_of(job)[1]
    try:
        await kube.patch(SECRETS, asked.own_secret, owned_by(job), namespace=asked.namespace)
    except Unanswered:  # it may be the Job's already; else the next submission does it
        return name
    except TesseraError:
        try:
            await kube.delete(JOBS, name, namespace=asked.namespace)
        except TesseraError:  # both stay, and the next submission sets the owner
            return name
        await _without_secret(kube, asked)
        raise
    await settle_secrets(kube, asked.namespace, dt.datetime.fromisoformat(secret["metadata"]["creationTimestamp"]))
    return name


async def _without_secret(kube: Kube, asked: JobRequest) -> None:
    with suppress(TesseraError):  # the next submission does it
        await kube.delete(SECRETS, asked.own_secret, namespace=asked.namespace)


async def settle_secrets(kube: Kube, namespace: str, now: dt.datetime | None = None) -> None:
    """Make Jobs own the Secrets of interrupted submissions, and delete unneeded ones.

    Without permission nothing happens: another user's submission does it.

    Args:
        kube: the cluster.
        namespace: whose Secrets.
        now: by the API server's clock; None to delete nothing, as another clock takes a new Secret for an old one.

    """
    with suppress(TesseraError):
        begun = (await kube.list(SECRETS, Selection(namespace=namespace, labels=BEGUN))).objects
        jobs = (await kube.list(JOBS, Selection(namespace=namespace, labels=BY_RUN))).objects if begun else ()
        needed = {secret_of(each): each for each in jobs}
        for each in begun:
            name, made = name_of(each)[1], dt.datetime.fromisoformat(each["metadata"]["creationTimestamp"])
            if name in needed:
                await kube.patch(SECRETS, name, owned_by(needed[name]), namespace=namespace)
            elif now is not None and (now - made).total_seconds() > LEFT_AFTER_S:
                await kube.delete(SECRETS, name, namespace=namespace)


async def _interrupted(place: ClusterSource, names: list[str], namespace: str, *, delete: bool) -> int:
    """Print how to continue with a Job that is no longer followed, or delete it."""
    if not names:
        click.echo("nothing was submitted", err=True)
    for name in names:
        again = f"{name} -n {namespace}"
        if delete:
            async with connected(place) as kube:
                await kube.delete(JOBS, name, namespace=namespace)
            click.echo(f"deleted {again}", err=True)
        else:
            click.echo(f"it is still running; tessera attach {again}, tessera stop {again}", err=True)
    return INTERRUPTED


async def forecast_job(kube: Kube, job: Object) -> str:
    """Return where a Job's pod would run now, or why it would be pending, or why that is not known.

    The planner is imported here, as that takes longer than all else before a Job is submitted, and only for those who
    may read nodes.
    """
    try:
        await kube.list(NODES, _NO_NODE)
        from tessera.cli.work.placement import describe_placement  # noqa: PLC0415 - slow to import

        return await describe_placement(kube, job)
    except Forbidden as error:
        return f"no forecast ({error.found}): it needs the ClusterRole tessera-viewer"
    except TesseraError as error:
        return f"no forecast: {error}"
