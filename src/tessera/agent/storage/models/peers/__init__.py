"""Models from other nodes: what a node serves to its peers, what it asks them for, and fetching a model together."""
