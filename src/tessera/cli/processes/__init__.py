"""Commands that run until they are stopped: agent, controller, server."""
