"""Changes MIG layouts on a node: repartitions GPUs, follows the label, and records layouts."""

from tessera.agent.partition.checkpoint import Checkpoint
from tessera.agent.partition.follow import ConfigLabel, Follower
from tessera.agent.partition.locks import NodeLocks
from tessera.agent.partition.nodegpus import AdvertisedLayouts, DeviceUsers, Driver, NodeGpus, Timing
from tessera.agent.partition.partitioner import Partitioner, Remember
from tessera.agent.partition.reboot import RebootRecord, reboot

__all__ = [
    "AdvertisedLayouts",
    "Checkpoint",
    "ConfigLabel",
    "DeviceUsers",
    "Driver",
    "Follower",
    "NodeGpus",
    "NodeLocks",
    "Partitioner",
    "RebootRecord",
    "Remember",
    "Timing",
    "reboot",
]
