"""The state of a Job, from what the API server has of it now."""

from tessera.api.kubernetes.jobs import job_selection
from tessera.api.kubernetes.jobstates import QUEUED_JOB, JobState, read_job
from tessera.clients.kube import EVENTS, JOBS, PODS, WORKLOADS, Forbidden, Kube, Object, Selection, uid_of
from tessera.errors import InvalidInput, Unsupported

__all__ = ["events_about_jobs", "events_selection", "state_of", "workloads_of_jobs", "workloads_selection"]


async def state_of(kube: Kube, name: str, namespace: str) -> JobState:
    """Return the state of a Job.

    Raises:
        InvalidInput: it does not exist.

    """
    job = await kube.get(JOBS, name, namespace)
    if job is None:
        hint = f"`tessera jobs -n {namespace}` lists jobs"
        raise InvalidInput(f"job {namespace}/{name}", found="there is no such job", hint=hint)
    pods = await kube.list(PODS, Selection(namespace=namespace, labels=job_selection(name)))
    events = await events_about_jobs(kube, namespace, name)
    return read_job(job, pods.objects, events, await workloads_of_jobs(kube, namespace, uid_of(job)))


async def events_about_jobs(kube: Kube, namespace: str, name: str = "") -> tuple[Object, ...]:
    """Return the events about the Jobs of a namespace, or of all if it is empty; none if they may not be read."""
    try:
        return (await kube.list(EVENTS, events_selection(namespace, name))).objects
    except Forbidden:
        return ()


async def workloads_of_jobs(kube: Kube, namespace: str, uid: str = "") -> tuple[Object, ...]:
    """Return Kueue's Workloads of a Job, or of all Jobs of a namespace if `uid` is empty.

    None if they may not be read, and without Kueue.
    """
    try:
        return (await kube.list(WORKLOADS, workloads_selection(namespace, uid))).objects
    except (Forbidden, Unsupported):
        return ()


def events_selection(namespace: str, name: str = "") -> Selection:
    """Select the events about a Job, or about all of a namespace."""
    named = (("involvedObject.name", name),) if name else ()
    return Selection(namespace=namespace, fields=(("involvedObject.kind", JOBS.name), *named))


def workloads_selection(namespace: str, uid: str = "") -> Selection:
    """Select Kueue's Workload of a Job, or those of all of a namespace."""
    return Selection(namespace=namespace, labels=((QUEUED_JOB, uid),) if uid else ())
