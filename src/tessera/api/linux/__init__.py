"""Formats of Linux and its tools: the content of block devices, and mounts."""
