"""Changes MIG layouts on a node: carries out repartitions, follows the label, and records layouts."""

from tessera.agent.partition.checkpoint import Checkpoint
from tessera.agent.partition.evictions import Evictions
from tessera.agent.partition.follow import MIG_CONFIG, MIG_CONFIG_STATE, Follower, FollowOptions
from tessera.agent.partition.locks import NodeLocks
from tessera.agent.partition.nodegpus import Driver, Evict, Held, NodeGpus, OfferLayout, Timing
from tessera.agent.partition.partitioner import Partitioner, Remember
from tessera.agent.partition.reboot import RebootRecord, reboot

__all__ = [
    "MIG_CONFIG",
    "MIG_CONFIG_STATE",
    "Checkpoint",
    "Driver",
    "Evict",
    "Evictions",
    "FollowOptions",
    "Follower",
    "Held",
    "NodeGpus",
    "NodeLocks",
    "OfferLayout",
    "Partitioner",
    "RebootRecord",
    "Remember",
    "Timing",
    "reboot",
]
