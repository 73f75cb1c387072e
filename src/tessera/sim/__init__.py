"""The simulator: the same core, driven by a virtual clock over traces and synthetic workloads; simulated drivers."""
