"""Changes MIG layouts on a node: carries out repartitions, follows the label, and records layouts."""

from tessera.agent.partition.checkpoint import Checkpoint
from tessera.agent.partition.follow import Follower, FollowOptions
from tessera.agent.partition.locks import NodeLocks
from tessera.agent.partition.nodegpus import Driver, Held, NodeGpus, OfferLayout, Timing
from tessera.agent.partition.partitioner import Partitioner, Remember
from tessera.agent.partition.reboot import RebootRecord, reboot

__all__ = [
    "Checkpoint",
    "Driver",
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
