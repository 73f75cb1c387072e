"""What is promised to pods that are about to be bound, so that no server gives it away twice."""
