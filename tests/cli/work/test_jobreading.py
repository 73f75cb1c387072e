"""The state of a Job is read with whatever may be read of it."""

import pytest

from harness.submittedjob import SubmittedJob
from tessera.api.kubernetes.jobstates import JobStage
from tessera.cli.work.jobreading import state_of
from tessera.clients.kube import EVENTS, JOBS, WORKLOADS
from tessera.errors import InvalidInput

pytestmark = pytest.mark.anyio


async def events_and_workloads(one: SubmittedJob, uid: str) -> None:
    for name, about in (("j", uid), ("other", "another")):
        metadata = {"name": f"of-{name}", "namespace": "ns", "labels": {"kueue.x-k8s.io/job-uid": about}}
        involved = {"kind": "Job", "name": name, "namespace": "ns", "uid": about}
        event = {"metadata": metadata, "involvedObject": involved, "type": "Warning", "message": f"of {name}"}
        await one.kube.create(EVENTS, event)
        await one.kube.create(WORKLOADS, {"metadata": metadata})
        condition = {"type": "QuotaReserved", "status": "False", "message": f"no quota for {name}"}
        status = {"status": {"conditions": [condition]}}
        await one.kube.patch(WORKLOADS, f"of-{name}", status, namespace="ns", subresource="status")


async def test_a_pending_job_has_the_reason_of_its_own_events_and_a_queued_one_of_its_own_workload() -> None:
    one = SubmittedJob()
    await events_and_workloads(one, await one.submit())
    assert (await state_of(one.kube, "j", "ns")).reason == "of j"
    one.kube.withhold("ns", EVENTS)
    assert (await state_of(one.kube, "j", "ns")).reason == ""

    queued = SubmittedJob()
    await events_and_workloads(queued, await queued.submit(queue="team"))
    assert (await state_of(queued.kube, "j", "ns")).reason == "pending in queue team: no quota for j"
    queued.kube.uninstall(WORKLOADS)
    found = await state_of(queued.kube, "j", "ns")
    assert (found.stage, found.reason) == (JobStage.QUEUED, "pending in queue team")


async def test_a_job_that_is_not_there_is_said() -> None:
    one = SubmittedJob()
    await one.submit()
    await one.kube.delete(JOBS, "j", namespace="ns")
    with pytest.raises(InvalidInput, match="job ns/j: there is no such job: `tessera jobs -n ns` lists jobs"):
        await state_of(one.kube, "j", "ns")
