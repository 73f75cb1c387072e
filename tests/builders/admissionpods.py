"""Pods and where they go: one table for the pure function, the webhook and the policies of a real API server."""

from typing import Any

from tessera.api.scheduler.admission import OPT_OUT

__all__ = ["ROUTED", "asking"]

NEED = {"tessera.dev/gpu-memory": "6"}


def asking(
    limits: dict[str, str] | None = None,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod of one container with these limits."""
    container = {"name": "main", "image": "none", "resources": {"limits": limits or {}}}
    metadata: dict[str, Any] = {"name": "a", "labels": labels or {}}
    metadata |= {"annotations": annotations} if annotations else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def _also(limits: dict[str, str], **more: str) -> dict[str, Any]:
    return {"name": "also", "image": "none", "resources": {"limits": limits}, **more}


ROUTED: dict[str, tuple[dict[str, Any], str, bool]] = {
    "a need": (asking({**NEED, "tessera.dev/gpu-compute": "30", "tessera.dev/gpu-count": "2"}), "default", True),
    "gpushare's memory": (asking({"aliyun.com/gpu-mem": "2"}), "default", True),
    "compute alone, which tessera-scheduler explains": (asking({"tessera.dev/gpu-compute": "30"}), "default", True),
    "a count alone": (asking({"tessera.dev/gpu-count": "2"}), "default", True),
    "an init container asks": (asking(initContainers=[_also(NEED)]), "default", True),
    "a sidecar asks": (asking(initContainers=[_also(NEED, restartPolicy="Always")]), "default", True),
    "the second container asks": (asking(containers=[_also({}), _also(NEED) | {"name": "b"}]), "default", True),
    "the default scheduler is named": (asking(NEED, schedulerName="default-scheduler"), "default", True),
    "nothing is asked": (asking(), "default", False),
    "none of it is asked, which tessera-scheduler explains": (
        asking({"tessera.dev/gpu-memory": "0"}),
        "default",
        True,
    ),
    "cpu is asked": (asking({"cpu": "1"}), "default", False),
    "an exact device is asked": (asking({"nvidia.com/gpu": "1"}), "default", False),
    "an exact device with an isolation, which its name does not give": (
        asking({"nvidia.com/mig-1g.5gb": "1"}, annotations={"tessera.dev/isolation": "hardware"}),
        "default",
        True,
    ),
    "an exact device of a GPU model": (
        asking({"nvidia.com/gpu": "1"}, annotations={"tessera.dev/gpu-model": "A100-40GB"}),
        "default",
        True,
    ),
    "an exact device with annotations of others": (
        asking({"nvidia.com/gpu": "1"}, annotations={"example.com/isolation": "hardware"}),
        "default",
        False,
    ),
    "an isolation without a device": (
        asking({"cpu": "1"}, annotations={"tessera.dev/isolation": "hardware"}),
        "default",
        False,
    ),
    "an isolation, and a device in an init container": (
        asking(annotations={"tessera.dev/isolation": "driver"}, initContainers=[_also({"nvidia.com/gpu.shared": "1"})]),
        "default",
        True,
    ),
    "another scheduler is named": (asking(NEED, schedulerName="volcano"), "default", False),
    "tessera-scheduler is named": (asking(NEED, schedulerName="tessera-scheduler"), "default", False),
    "a node is named": (asking(NEED, nodeName="n"), "default", False),
    "the label says no, and an amount is asked": (asking(NEED, labels={OPT_OUT: "false"}), "default", True),
    "the label says no, and a share is asked": (
        asking({"aliyun.com/gpu-mem": "1"}, labels={OPT_OUT: "false"}),
        "default",
        True,
    ),
    "the label says no, and an exact device is asked": (
        asking({"nvidia.com/gpu": "1"}, labels={OPT_OUT: "false"}, annotations={"tessera.dev/isolation": "hardware"}),
        "default",
        False,
    ),
    "the label says yes": (asking(NEED, labels={OPT_OUT: "true"}), "default", True),
    "a namespace of the system": (asking(NEED), "kube-system", False),
    "Tessera's own namespace": (asking(NEED), "tessera-system", False),
}
"""Pod, namespace, and whether Tessera sets its scheduler."""
