"""Packing: which node and device takes a pod, by policies behind one interface."""

from tessera.core.packing.pack.packer import Choice, Packer
from tessera.core.packing.pack.policies import POLICIES
from tessera.core.packing.pack.policy import UNFIT, Mix, Policy

__all__ = ["POLICIES", "UNFIT", "Choice", "Mix", "Packer", "Policy"]
