"""The pods of this node: their allocations, annotations, and the keys whose signatures count."""
