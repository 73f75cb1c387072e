"""Submits a Job: finds its image, says where it would run, creates it, follows it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import click

from tessera.api.documents import write
from tessera.api.kubernetes.jobs import JobRequest, job_object, own_secret
from tessera.api.tessera.v1alpha1.environments import choose_environment
from tessera.cli.clusteraccess import connected
from tessera.cli.signals import INTERRUPTED, ended_or_interrupted
from tessera.cli.work.environmentcatalog import read_environments
from tessera.cli.work.submit.forecast import forecast_job
from tessera.cli.work.submit.ownsecret import create_job
from tessera.cli.work.submit.workoptions import Submission
from tessera.clients.kube import JOBS, Kube, Object, name_of, uid_of
from tessera.errors import TesseraError

__all__ = ["Follow", "submit"]

Follow = Callable[[Kube, str], Awaitable[int]]
"""Follows the Job of this name to its end, and returns the exit code of its command."""


def submit(submission: Submission, follow: Follow) -> int:
    """Do with a Job what the command line says, and return the exit code.

    Args:
        submission: the work, and what to do with it.
        follow: the next action.

    """
    creation = list[asyncio.Task[Object]]()

    async def work() -> int:
        if submission.dry_run:
            return await _show(submission)
        async with connected(submission.cluster) as kube:
            # 1. Find the image of the environment.
            requested = await _with_image(kube, submission)
            # 2. Say where the Job would run, or why it would be pending.
            if not submission.detach:
                click.echo(await forecast_job(kube, job_object(requested)), err=True)
            # 3. Create it; after Ctrl-C wait for the answer, as it may exist.
            creation.append(asyncio.create_task(create_job(kube, requested, submission.files)))
            try:
                job = await asyncio.shield(creation[0])
            finally:
                await asyncio.wait(creation)
            # 4. Follow it to its end, unless only its name is wanted.
            name = name_of(job)[1]
            if submission.detach:
                click.echo(name)
                return 0
            return await follow(kube, name)

    return ended_or_interrupted(work(), lambda: _interrupted(submission, creation))


async def _with_image(kube: Kube, submission: Submission) -> JobRequest:
    """Return the work with its image, or that of its environment."""
    image = submission.image
    if not image:
        environments = await read_environments(kube)
        image = choose_environment(environments, submission.environment, notebook=submission.work.notebook).image
    return submission.work.in_image(image)


async def _show(submission: Submission) -> int:
    """Print the objects, and say where the Job would run; without an environment no cluster is needed."""
    if submission.image:
        _print_objects(submission.work.in_image(submission.image), submission.files)
    try:
        async with connected(submission.cluster) as kube:
            requested = await _with_image(kube, submission)
            if submission.environment:
                _print_objects(requested, submission.files)
            click.echo(await forecast_job(kube, job_object(requested)), err=True)
    except TesseraError as error:
        if submission.environment:
            raise
        click.echo(f"no forecast: {error}", err=True)
    return 0


def _print_objects(requested: JobRequest, files: Mapping[str, bytes]) -> None:
    objects = ([own_secret(requested, files)] if files else []) + [job_object(requested)]
    click.echo("---\n".join(write(each, block=True) for each in objects), nl=False)


async def _interrupted(submission: Submission, creation: list[asyncio.Task[Object]]) -> int:
    """Print how to continue with a Job that is no longer followed, or delete it.

    Raises:
        TesseraError: it was not created, or that is unknown; or it cannot be deleted.

    """
    if not creation:
        click.echo("nothing was submitted", err=True)
        return INTERRUPTED
    job = await creation[0]
    namespace, name = name_of(job)
    again = f"{name} -n {namespace}"
    if not submission.delete_on_interrupt:
        click.echo(f"it is still running: tessera attach {again} follows it, tessera stop {again} deletes it", err=True)
        return INTERRUPTED
    try:
        async with connected(submission.cluster) as kube:
            await kube.delete(JOBS, name, namespace=namespace, uid=uid_of(job))
    except TesseraError:
        click.echo(f"it may still be running: tessera stop {again} deletes it", err=True)
        raise
    click.echo(f"deleted {again}", err=True)
    return INTERRUPTED
