"""What a binding writes on a pod."""

import msgspec

from builders.kubeobjects import gpu, pod, share
from tessera.api.tessera.pods.bindings import binding_annotations
from tessera.api.tessera.pods.clusterpods import read_live_pod
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import Form

NEED = {"tessera.dev/gpu-memory": 6}


def test_a_need_gets_its_assignment_alone() -> None:
    each = pod("p", NEED)
    got = binding_annotations(
        each, read_live_pod(each).need, (share(1, 6144),), (gpu(0), gpu(1)), share_unit_mib=1024, now_ns=5
    )
    assert list(got) == ["tessera.dev/assignment"]


def test_gpushare_pods_get_what_gpushares_extender_writes() -> None:
    limits = [{"aliyun.com/gpu-mem": "3"}, {}, {"aliyun.com/gpu-mem": "2"}]
    containers = [{"name": f"c{i}", "resources": {"limits": each}} for i, each in enumerate(limits)]
    each = pod("p", spec={"containers": containers})
    live = read_live_pod(each)
    assert [request.form for request in live.need.requests] == [Form.SHARE]
    held = share(1, 5120, Mode.MEMORY_SHARE, resource="aliyun.com/gpu-mem")
    got = binding_annotations(each, live.need, (held,), (gpu(0), gpu(1, "T4")), share_unit_mib=1024, now_ns=17)
    assignment = got.pop("tessera.dev/assignment")
    assert msgspec.json.decode(assignment)["shares"][0]["gpu"] == 1
    assert got == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "17",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":3},"2":{"1":2}}',
    }
    again = read_live_pod(pod("q", annotations=got, spec={"containers": containers, "nodeName": "a"}))
    assert [(each.gpu, each.memory_mib) for each in again.shares] == [(1, 5120)]
