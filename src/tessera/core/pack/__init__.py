"""Packing: which node and device takes a pod, by policies behind one interface."""
