"""Formats of Linux and its tools: what block devices hold, and what is mounted where."""
