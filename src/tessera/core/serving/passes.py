"""How often a model server is observed and decided on."""

from typing import Final

__all__ = ["MINUTE_PASSES_S", "PASS_S"]

PASS_S: Final = 15
"""Between two passes, and two scrapes: the sync period of HorizontalPodAutoscalers."""
MINUTE_PASSES_S: Final = 3 * PASS_S
"""What is so in four passes, from the first to the last, is so for a minute; in two that are further apart, too."""
