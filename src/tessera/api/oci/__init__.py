"""Container images as registries have them: names, manifests, configurations, credentials."""
