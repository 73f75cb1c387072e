"""The model cache of a node: revisions in a folder, kept in step with a store."""
