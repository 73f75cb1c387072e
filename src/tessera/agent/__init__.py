"""What runs on a GPU node: layouts, sharing, device plugins, health, reports."""
