"""Formats of HAMi."""
