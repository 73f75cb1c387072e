"""Models from other nodes: what a node serves to its peers, what it requests of them, and fetching a model together."""
