"""Formats of Hugging Face: the metadata of a model."""
