"""Tessera's own formats: objects of tessera.dev/v1alpha1, fleets, plans, files of a node, and clusters read by them."""
