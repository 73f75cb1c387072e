"""Formats of Hugging Face: what a folder with a model says of it."""
