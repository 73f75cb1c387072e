"""The extended resources by which pods ask for amounts of GPUs; names of whole devices are `core.gpu.sharing`'s."""

__all__ = ["GPU_COMPUTE", "GPU_COUNT", "GPU_MEMORY", "SHARE_COUNT", "SHARE_MEMORY"]

GPU_MEMORY = "tessera.dev/gpu-memory"
GPU_COMPUTE = "tessera.dev/gpu-compute"
GPU_COUNT = "tessera.dev/gpu-count"
SHARE_MEMORY = "aliyun.com/gpu-mem"
"""gpushare's resource. Source: AliyunContainerService/gpushare-scheduler-extender `pkg/utils/const.go`."""
SHARE_COUNT = "aliyun.com/gpu-count"
"""How many GPUs that memory is of; gpushare's programs divide by it. Source: as above, `cmd/inspect/nodeinfo.go`."""
