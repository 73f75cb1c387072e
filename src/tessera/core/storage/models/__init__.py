"""Which revision of a model a node fetches, keeps and packs, and how it is fetched."""
