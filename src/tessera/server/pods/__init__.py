"""The pods as a server observes them by its watch, with claims, exchanges and nominations."""
