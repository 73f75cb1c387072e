"""Formats of gpushare's programs."""
