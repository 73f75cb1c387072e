"""Container images in registries: names, manifests, configurations, credentials."""
