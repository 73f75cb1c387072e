"""A node's folders as `tessera doctor` looks at them."""

from tessera.agent.doctor import DoctorPaths, observe
from tessera.agent.sharing import MpsDaemons, MpsSettings
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kube import MemoryKube
from tessera.core.node.doctor import HostFacts
from tessera.errors import TesseraError

NODE = "n1"


async def look(
    places: DoctorPaths,
    driver: MemoryDriver | TesseraError | None = None,
    kube: MemoryKube | None = None,
    node: str = NODE,
) -> HostFacts:
    given = MemoryDriver.of("T4") if driver is None else driver
    settings = MpsSettings(root=places.mps_root, program=str(places.mps_root / "program"))
    return await observe(places, given, MpsDaemons(settings), kube, node)
