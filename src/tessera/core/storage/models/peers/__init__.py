"""Models from other nodes: who reads what from the store, what is verified, and which peer served wrong chunks."""
