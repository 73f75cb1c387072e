"""Tessera shares a Kubernetes cluster's GPUs. The command is `tessera`; the decisions are in `tessera.core`."""

__all__ = ["__version__"]

__version__ = "0.1.0"
