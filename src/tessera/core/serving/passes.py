"""How often a model server is observed and decided on."""

from typing import Final

__all__ = ["PASS_S", "SUSTAINED_S"]

PASS_S: Final = 15
"""Between two passes, and two scrapes: the sync period of HorizontalPodAutoscalers."""
SUSTAINED_S: Final = 3 * PASS_S
"""From the first to the last of four passes: true in all of them counts as true for a minute."""
