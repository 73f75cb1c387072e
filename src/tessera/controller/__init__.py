"""The controller: nodes' policies, devices for pending pods, model servers, caches, warm-ups and environments."""
