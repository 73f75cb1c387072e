"""Revisions of models on a disk: fetched, verified, packed, mirrored, removed when unused."""
