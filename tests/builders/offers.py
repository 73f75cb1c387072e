"""What a node with two GPUs offers by name."""

from builders.gpunodes import facts, identity, sevenths, shared
from tessera.core.deviceplugin.offers.advertise import NodeOffer, offer
from tessera.core.deviceplugin.offers.advertise import OfferOptions as Options
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import AUTO, Mode, Sharing

FIRST, SECOND = identity("GPU", 0), identity("GPU", 1)
SEVEN = sevenths()
REPLICAS = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),))
CUT = Sharing(modes=(Mode.MIG,), layout=SEVEN, allow_repartition=False)


def node_offer() -> NodeOffer:
    """Return what a node offers with replicas of one GPU, instances of another, and units of a third."""
    seen = (facts(0), facts(1, layout=SEVEN), facts(2))
    gpus = [shared(each, sharing) for each, sharing in zip(seen, (REPLICAS, CUT, AUTO), strict=True)]
    return offer(gpus, Inventory(gpus=seen), Options())
