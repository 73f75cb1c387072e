"""A Job's own Secret: its code and its notebook's token. It is there before the Job, and deleted with it."""

import datetime as dt
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from tessera.api.kubernetes.jobs import (
    ARCHIVE,
    BEGUN,
    BY_RUN,
    LEFT_AFTER_S,
    NOTEBOOK_KEY,
    JobRequest,
    WorkRequest,
    job_object,
    own_secret,
    owned_by,
    secret_of,
)
from tessera.clients.kube import JOBS, SECRETS, Kube, Object, Selection, Unanswered, name_of, uid_of
from tessera.errors import Conflict, TesseraError, shown

__all__ = ["adopt_or_delete_secrets", "create_job", "with_own_secret"]

_SUFFIX_BYTES = 4
_TOKEN_BYTES = 24
_NAMED = 5


def with_own_secret(requested: WorkRequest, code: Path | None) -> tuple[WorkRequest, dict[str, bytes]]:
    """Return the work with its own Secret, if it needs one, and the files of that: its code, its notebook's token.

    Args:
        requested: the work.
        code: its folder; None for no code.

    Raises:
        InvalidInput: the folder of its code cannot be read or is too large.

    """
    files: dict[str, bytes] = {}
    if code is not None:
        from tessera.cli.work.submit.codefolder import archive_folder  # noqa: PLC0415 - slow to import, and rarely needed

        archive = archive_folder(code)
        files[ARCHIVE] = archive.content
        if archive.left_out:
            more = f" and {left} more" if (left := len(archive.left_out) - _NAMED) > 0 else ""
            named = ", ".join(map(shown, archive.left_out[:_NAMED]))
            click.echo(f"left out, as they may contain credentials: {named}{more}", err=True)
    if requested.notebook:
        files[NOTEBOOK_KEY] = secrets.token_hex(_TOKEN_BYTES).encode()
    own = f"{requested.prefix}own-{secrets.token_hex(_SUFFIX_BYTES)}" if files else ""
    return msgspec.structs.replace(requested, own_secret=own, code=ARCHIVE in files), files


async def create_job(kube: Kube, requested: JobRequest, files: Mapping[str, bytes]) -> Object:
    """Create a Job and its own Secret, or neither; return the Job.

    The Secret comes first, so that no pod waits for a missing one, wherever this process ends.
    """
    if not files:
        return await _job(kube, requested)
    secret = await kube.create(SECRETS, own_secret(requested, files, begun=True))
    try:
        job = await _job(kube, requested)
    except Unanswered:  # the Job may exist and need its Secret: the next submission checks
        raise
    except TesseraError:
        await _without_secret(kube, requested)
        raise
    try:
        await kube.patch(SECRETS, requested.own_secret, owned_by(job), namespace=requested.namespace)
    except Unanswered:  # it may be the Job's already; else the next submission does it
        return job
    except TesseraError:
        try:
            await kube.delete(JOBS, name_of(job)[1], namespace=requested.namespace, uid=uid_of(job))
        except Conflict:  # it is gone, and another has its name
            pass
        except TesseraError:  # both stay, and the next submission sets the owner
            return job
        await _without_secret(kube, requested)
        raise
    await adopt_or_delete_secrets(
        kube, requested.namespace, dt.datetime.fromisoformat(secret["metadata"]["creationTimestamp"])
    )
    return job


async def _job(kube: Kube, requested: JobRequest) -> Object:
    try:
        return await kube.create(JOBS, job_object(requested))
    except Unanswered as error:  # with a generated name, a second one would be a second Job
        hint = f"the Job may exist: tessera jobs -n {requested.namespace} lists it; if not, submit it again"
        raise Unanswered(error.subject, found=error.cause, hint=hint) from error


async def _without_secret(kube: Kube, requested: JobRequest) -> None:
    with suppress(TesseraError):  # the next submission does it
        await kube.delete(SECRETS, requested.own_secret, namespace=requested.namespace)


async def adopt_or_delete_secrets(kube: Kube, namespace: str, now: dt.datetime | None = None) -> None:
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
