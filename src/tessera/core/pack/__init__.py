"""Packing: which node and device takes a pod, by policies behind one interface."""

from tessera.core.pack.packer import Choice, Packer
from tessera.core.pack.policies import POLICIES
from tessera.core.pack.policy import UNFIT, Mix, Policy

__all__ = ["POLICIES", "UNFIT", "Choice", "Mix", "Packer", "Policy"]
