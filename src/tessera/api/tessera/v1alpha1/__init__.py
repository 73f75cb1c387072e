"""Tessera's kinds of objects, version v1alpha1, as values of the core, and their CustomResourceDefinitions."""
