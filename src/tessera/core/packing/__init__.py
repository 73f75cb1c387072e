"""Where do pods go? What fits, which place is best, what is planned, moved or preempted, and why not."""
