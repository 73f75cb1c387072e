"""What a container asks of GPUs, in each of the three forms."""

from tessera.core.workload.need import DeviceRequest, Form, Isolation


def exact(count: int = 1, resource: str = "nvidia.com/gpu", container: str = "") -> DeviceRequest:
    """Return a request for devices by name."""
    return DeviceRequest(resource=resource, count=count, container=container)


def gpushare(memory_mib: int, container: str = "", *, count: int = 1, compute_percent: int = 0) -> DeviceRequest:
    """Return a request for gpushare's memory, and compute, on each of so many GPUs."""
    return DeviceRequest(
        resource="aliyun.com/gpu-mem",
        form=Form.SHARE,
        count=count,
        memory_mib=memory_mib,
        compute_percent=compute_percent,
        container=container,
    )


def need(
    memory_mib: int,
    count: int = 1,
    compute_percent: int = 0,
    container: str = "",
    isolation: Isolation = Isolation.DRIVER,
) -> DeviceRequest:
    """Return a request for an amount of memory, and of compute, on each of so many GPUs."""
    return DeviceRequest(
        resource="tessera.dev/gpu-memory",
        form=Form.NEED,
        count=count,
        memory_mib=memory_mib,
        compute_percent=compute_percent,
        isolation=isolation,
        container=container,
    )
