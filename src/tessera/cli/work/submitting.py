"""Submit a Job: say where it would run, create it with what belongs to it, follow it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click

from tessera.api.kubernetes.jobs import JobRequest, job_object, own_secret
from tessera.cli.livecluster import ClusterSource, connected, observe
from tessera.cli.printing import yaml_text
from tessera.cli.work.asking import Asked, place_of
from tessera.cli.work.following import INTERRUPTED, ended_or_interrupted
from tessera.clients.kube import JOBS, SECRETS, Forbidden, Kube, Object, name_of
from tessera.core.explain.podexplanation import explain_pod
from tessera.core.workload.need import PodKey
from tessera.errors import TesseraError

__all__ = ["Follow", "create_job", "submit"]

Follow = Callable[[Kube, str], Awaitable[int]]
"""Follows the Job of this name to its end, and returns the exit code of its command."""


def submit(given: Asked, asked: JobRequest, files: Mapping[str, bytes], follow: Follow) -> int:
    """Do with a Job what the options say, and return the exit code.

    Args:
        given: the options.
        asked: the Job.
        files: of its own Secret.
        follow: what comes then.

    """
    place, names = place_of(given), list[str]()
    if given["dry_run"]:
        objects = ([own_secret(asked, files)] if files else []) + [job_object(asked)]
        click.echo(b"---\n".join(map(yaml_text, objects)), nl=False)

    async def work() -> int:
        if not given["detach"]:
            click.echo(await _forecast(place, job_object(asked)), err=True)
        if given["dry_run"]:
            return 0
        async with connected(place) as kube:
            creating = asyncio.ensure_future(create_job(kube, asked, files))
            try:
                await asyncio.shield(creating)
            finally:  # Ctrl-C meanwhile is about a Job that may be there
                names.append(await creating)
            if given["detach"]:
                click.echo(names[0])
                return 0
            return await follow(kube, names[0])

    return ended_or_interrupted(
        work(), lambda: _interrupted(place, names, asked.namespace, delete=given["cancel_on_interrupt"])
    )


async def create_job(kube: Kube, asked: JobRequest, files: Mapping[str, bytes]) -> str:
    """Create a Job and its own Secret, or nothing; return its name."""
    job = await kube.create(JOBS, job_object(asked))
    name = name_of(job)[1]
    if files:
        try:
            await kube.create(SECRETS, own_secret(asked, files, job))
        except TesseraError:
            await kube.delete(JOBS, name, namespace=asked.namespace)
            raise
    return name


async def _interrupted(place: ClusterSource, names: list[str], namespace: str, *, delete: bool) -> int:
    """Say how to go on with a Job that is followed no more, or delete it."""
    if not names:
        click.echo("nothing was submitted", err=True)
    for name in names:
        again = f"{name} -n {namespace}"
        if delete:
            async with connected(place) as kube:
                await kube.delete(JOBS, name, namespace=namespace)
            click.echo(f"deleted {again}", err=True)
        else:
            click.echo(f"it goes on; tessera attach {again}, tessera stop {again}", err=True)
    return INTERRUPTED


async def _forecast(place: ClusterSource, body: Object) -> str:
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
