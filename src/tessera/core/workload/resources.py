"""The extended resources by which pods request amounts of GPUs and models; `core.gpu.sharing` names devices."""

__all__ = ["GPU_COMPUTE", "GPU_COUNT", "GPU_MEMORY", "MODEL_RESOURCE", "SHARE_COUNT", "SHARE_MEMORY", "SHARE_RESOURCES"]

GPU_MEMORY = "tessera.dev/gpu-memory"
"""Resource of a container: GPU memory, in GiB by default. Set by users;
read by the server, the controller, the agent and the planner."""
GPU_COMPUTE = "tessera.dev/gpu-compute"
"""Resource of a container: percent of a GPU's compute. Set by users;
read by the server, the controller, the agent and the planner."""
GPU_COUNT = "tessera.dev/gpu-count"
"""Resource of a container: how many GPUs the amounts are of, each. Set by users;
read by the server, the controller, the agent and the planner."""
MODEL_RESOURCE = "models.tessera.dev/"
"""Resource of a container: the model of the ModelCache whose name follows, mounted. Set by users; read by the agent and
kube-scheduler."""
SHARE_MEMORY = "aliyun.com/gpu-mem"
"""Resource of a container: GPU memory, in GiB by default. Set by users;
read by the server, the controller, the agent and the planner. Source:
AliyunContainerService/gpushare-scheduler-extender `pkg/utils/const.go`."""
SHARE_COUNT = "aliyun.com/gpu-count"
"""Resource of a node: how many GPUs its `aliyun.com/gpu-mem` is of. Set by the agent; read by gpushare's programs,
which divide by it. Source: as above, `cmd/inspect/nodeinfo.go`."""

SHARE_RESOURCES = (SHARE_MEMORY, GPU_MEMORY)
"""Resources counted in units of memory; the assignment says which GPU a pod gets, not the device ids."""
SCHEDULER_NAME = "tessera-scheduler"
"""`spec.schedulerName` of pods that request an amount."""
