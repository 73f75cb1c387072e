"""Preparing a node's local disks: found, left alone, assembled, formatted once, mounted, offered as volumes."""
