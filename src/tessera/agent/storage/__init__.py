"""What the agent keeps on a node's local disks."""

from tessera.agent.storage.disks import new_creation, observe_plan, prepare

__all__ = ["new_creation", "observe_plan", "prepare"]
