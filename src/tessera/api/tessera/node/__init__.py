"""What Tessera writes on a node's disk and Node object: its policy, its layout, its allocations, its reports."""
