"""The device plugin of a resource of two GPUs, without servers."""

from builders.deviceplugins import gate
from builders.gpunodes import facts, offered
from builders.nodeviews import RecordedPods
from tessera.agent.deviceplugin import OfferedResource
from tessera.core.deviceplugin.allocations.agentallocations import AllocatedDevice
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import OfferOptions, PluginDevice, Resource
from tessera.core.deviceplugin.offers.prefer import AllocationPolicy
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.liststrategies import DeviceInjection

SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 2),))


MEMORY = Sharing(modes=(Mode.MEMORY_SHARE,))


UNHEALTHY = OfferOptions(unhealthy=frozenset({DeviceId(facts(1).uuid)}))


GPU, UNITS = "nvidia.com/gpu", "aliyun.com/gpu-mem"


class Shares:
    """Notes what it is asked for shares."""

    def __init__(self) -> None:
        self.requested: list[tuple[str, str, int]] = []

    async def forget_former(self) -> None:
        return None

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> ContainerResponse:
        self.requested.append(("allocate", resource, len(ids)))
        return ContainerResponse()

    async def pre_start(self, resource: str, ids: tuple[str, ...]) -> None:
        self.requested.append(("pre_start", resource, len(ids)))


class IdsHandover:
    """Hands devices over as a variable with their ids."""

    injection = DeviceInjection()
    inventory = Inventory(gpus=(facts(0, "T4"), facts(1, "T4")))

    def give(self, resource: Resource, devices: tuple[PluginDevice, ...]) -> ContainerResponse:
        assert resource.name
        return ContainerResponse(env=(("IDS", ",".join(device.id for device in devices)),))

    def indices(self, uses: tuple[AllocatedDevice, ...]) -> tuple[str, ...]:
        return tuple("0" for _ in uses)


def two(sharing: Sharing, name: str = GPU, options: OfferOptions | None = None) -> Resource:
    """Return a resource of two GPUs."""
    return offered((facts(0, "T4"), sharing), (facts(1, "T4"), sharing), options=options)[name]


def plugin(
    resource: Resource,
    shares: Shares | None = None,
    policy: AllocationPolicy = "distributed",
    view: RecordedPods | None = None,
) -> OfferedResource:
    return OfferedResource(resource, IdsHandover(), gate(view or RecordedPods()), shares or Shares(), policy=policy)


IDS = [device.id for device in two(SLICED).devices]
