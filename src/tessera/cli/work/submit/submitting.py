"""Submits a Job: finds its image, says where it would run, creates it, follows it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import click
import msgspec

from tessera.api.documents import write
from tessera.api.kubernetes.jobs import JobRequest, job_object, own_secret
from tessera.api.tessera.v1alpha1.environments import choose_environment
from tessera.cli.clusteraccess import ClusterSource, connected
from tessera.cli.signals import INTERRUPTED, ended_or_interrupted
from tessera.cli.work.environmentcatalog import read_environments
from tessera.cli.work.submit.forecast import forecast_job
from tessera.cli.work.submit.ownsecret import create_job
from tessera.cli.work.submit.workoptions import WorkOptions, cluster_of
from tessera.clients.kube import JOBS, Kube, Object, name_of, uid_of
from tessera.errors import TesseraError

__all__ = ["Follow", "submit"]

Follow = Callable[[Kube, str], Awaitable[int]]
"""Follows the Job of this name to its end, and returns the exit code of its command."""


def submit(given: WorkOptions, requested: JobRequest, files: Mapping[str, bytes], follow: Follow) -> int:
    """Do with a Job what the options say, and return the exit code.

    Args:
        given: the options.
        requested: the Job.
        files: of its own Secret.
        follow: the next action.

    """
    place, environment, created = cluster_of(given), given["environment"], list[Object]()

    async def work() -> int:
        if given["dry_run"]:
            return await _show(place, environment, requested, files)
        async with connected(place) as kube:
            # 1. Find the image of the environment.
            found = await _with_image(kube, environment, requested)
            # 2. Say where the Job would run, or why it would be pending.
            if not given["detach"]:
                click.echo(await forecast_job(kube, job_object(found)), err=True)
            # 3. Create it; after Ctrl-C wait for the answer, as it may exist.
            creating = asyncio.ensure_future(create_job(kube, found, files))
            try:
                await asyncio.shield(creating)
            finally:
                created.append(await creating)
            # 4. Follow it to its end, unless only its name is wanted.
            name = name_of(created[0])[1]
            if given["detach"]:
                click.echo(name)
                return 0
            return await follow(kube, name)

    return ended_or_interrupted(work(), lambda: _interrupted(place, created, delete=given["cancel_on_interrupt"]))


async def _with_image(kube: Kube, environment: str, requested: JobRequest) -> JobRequest:
    """Return the work with the image of its environment; where none is named, as it is."""
    if not environment:
        return requested
    found = choose_environment(await read_environments(kube), environment, notebook=requested.notebook)
    return msgspec.structs.replace(requested, image=found.image)


async def _show(place: ClusterSource, environment: str, requested: JobRequest, files: Mapping[str, bytes]) -> int:
    """Print the objects, and say where the Job would run; without an environment no cluster is needed."""
    if not environment:
        _print_objects(requested, files)
    try:
        async with connected(place) as kube:
            if environment:
                requested = await _with_image(kube, environment, requested)
                _print_objects(requested, files)
            click.echo(await forecast_job(kube, job_object(requested)), err=True)
    except TesseraError as error:
        if environment:
            raise
        click.echo(f"no forecast: {error}", err=True)
    return 0


def _print_objects(requested: JobRequest, files: Mapping[str, bytes]) -> None:
    objects = ([own_secret(requested, files)] if files else []) + [job_object(requested)]
    click.echo("---\n".join(write(each, block=True) for each in objects), nl=False)


async def _interrupted(place: ClusterSource, created: list[Object], *, delete: bool) -> int:
    """Print how to continue with a Job that is no longer followed, or delete it."""
    if not created:
        click.echo("nothing was submitted", err=True)
    for job in created:
        namespace, name = name_of(job)
        again = f"{name} -n {namespace}"
        if delete:
            try:
                async with connected(place) as kube:
                    await kube.delete(JOBS, name, namespace=namespace, uid=uid_of(job))
            except TesseraError:
                click.echo(f"it may still be running; tessera stop {again}", err=True)
                raise
            click.echo(f"deleted {again}", err=True)
        else:
            click.echo(f"it is still running; tessera attach {again}, tessera stop {again}", err=True)
    return INTERRUPTED
