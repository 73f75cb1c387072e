"""Commands that run until they are stopped: agent, disk-agent, controller, server, metrics."""
