"""Submits a Job: says where it would run, creates it with its Secret, follows it."""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import click

from tessera.api.kubernetes.jobs import (
    BEGUN,
    BY_RUN,
    LEFT_AFTER_S,
    JobRequest,
    job_object,
    own_secret,
    owned_by,
    secret_of,
)
from tessera.cli.clusteraccess import ClusterSource, connected
from tessera.cli.printing import yaml_text
from tessera.cli.work.following import INTERRUPTED, ended_or_interrupted
from tessera.cli.work.workoptions import WorkOptions, place_of
from tessera.clients.kube import JOBS, NODES, SECRETS, Forbidden, Kube, Object, Selection, Unanswered, name_of
from tessera.errors import TesseraError

__all__ = ["Follow", "create_job", "forecast_job", "settle_secrets", "submit"]

_NO_NODE = Selection(fields=(("metadata.name", "none"),))
"""What may be read is known by reading nothing."""
Follow = Callable[[Kube, str], Awaitable[int]]
"""Follows the Job of this name to its end, and returns the exit code of its command."""


def submit(given: WorkOptions, asked: JobRequest, files: Mapping[str, bytes], follow: Follow) -> int:
    """Do with a Job what the options say, and return the exit code.

    Args:
        given: the options.
        asked: the Job.
        files: of its own Secret.
        follow: the next action.

    """
    place, names = place_of(given), list[str]()
    if given["dry_run"]:
        objects = ([own_secret(asked, files)] if files else []) + [job_object(asked)]
        click.echo(b"---\n".join(map(yaml_text, objects)), nl=False)

    async def work() -> int:
        if given["dry_run"]:
            click.echo(await _forecast_unless_away(place, job_object(asked)), err=True)
            return 0
        async with connected(place) as kube:
            if not given["detach"]:
                click.echo(await forecast_job(kube, job_object(asked)), err=True)
            creating = asyncio.ensure_future(create_job(kube, asked, files))
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


async def settle_secrets(kube: Kube, namespace: str, now: dt.datetime) -> None:
    """Make Jobs own the Secrets of interrupted submissions, and delete unneeded ones.

    Without permission nothing happens: another user's submission does it.
    """
    with suppress(TesseraError):
        begun = (await kube.list(SECRETS, Selection(namespace=namespace, labels=BEGUN))).objects
        jobs = (await kube.list(JOBS, Selection(namespace=namespace, labels=BY_RUN))).objects if begun else ()
        needed = {secret_of(each): each for each in jobs}
        for each in begun:
            name, made = name_of(each)[1], dt.datetime.fromisoformat(each["metadata"]["creationTimestamp"])
            if name in needed:
                await kube.patch(SECRETS, name, owned_by(needed[name]), namespace=namespace)
            elif (now - made).total_seconds() > LEFT_AFTER_S:
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


async def _forecast_unless_away(place: ClusterSource, job: Object) -> str:
    """Return the same where there may be no cluster."""
    try:
        async with connected(place) as kube:
            return await forecast_job(kube, job)
    except TesseraError as error:
        return f"no forecast: {error}"
