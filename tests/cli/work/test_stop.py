"""`tessera stop`: all named Jobs or none, and only those that `tessera jobs` lists."""

import datetime as dt

import pytest

from harness.submittedjob import SubmittedJob
from tessera.api.kubernetes.jobs import ARCHIVE, JobRequest, job_object, own_secret
from tessera.cli.work.stop import stop_jobs
from tessera.clients.kube import JOBS, SECRETS, Kind, MemoryKube
from tessera.errors import Conflict, InvalidInput


@pytest.mark.anyio
async def test_a_secret_whose_job_is_being_submitted_stays_whatever_the_time_is_here() -> None:
    one = SubmittedJob(MemoryKube(lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()))  # long ago
    await one.submit()
    asked = JobRequest(name="k", namespace="ns", image="a", own_secret="k-own", code=True)
    await one.kube.create(SECRETS, own_secret(asked, {ARCHIVE: b"x"}, begun=True))
    await stop_jobs(one.kube, ("j",), "ns")
    assert await one.kube.get(SECRETS, "k-own", "ns") is not None


@pytest.mark.anyio
async def test_all_are_stopped_or_none_and_never_what_others_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    one = SubmittedJob()
    await one.submit()
    foreign = job_object(JobRequest(name="backup", namespace="ns", image="a"))
    foreign["metadata"]["labels"] = {}
    await one.kube.create(JOBS, foreign)
    for name, words in (
        ("backup", "`tessera jobs` does not list it: `kubectl delete job backup -n ns` deletes it"),
        ("x", "no such job"),
    ):
        with pytest.raises(InvalidInput, match=words):
            await stop_jobs(one.kube, ("j", name), "ns")
        assert await one.kube.get(JOBS, "j", "ns") is not None
    await stop_jobs(one.kube, ("j",), "ns")
    assert "deleted ns/j" in capsys.readouterr().out
    assert await one.kube.get(JOBS, "j", "ns") is None


@pytest.mark.anyio
async def test_anothers_job_that_took_the_name_meanwhile_stays() -> None:
    class Taking(MemoryKube):
        async def delete(
            self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", grace_s: int | None = None
        ) -> None:
            await super().delete(kind, name, namespace=namespace)
            await self.create(kind, job_object(JobRequest(name=name, namespace=namespace, image="other")))
            await super().delete(kind, name, namespace=namespace, uid=uid, grace_s=grace_s)

    one = SubmittedJob(Taking())
    await one.submit()
    with pytest.raises(Conflict, match="Job ns/j: another object has the name now"):
        await stop_jobs(one.kube, ("j",), "ns")
    assert await one.kube.get(JOBS, "j", "ns") is not None
