"""Tessera's own formats: kinds of objects, fleets, plans, annotations, a node's files, usage, the chart's values."""
