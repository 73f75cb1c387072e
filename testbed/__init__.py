"""A real Kubernetes on one Linux machine, to try Tessera on and to test it with: `scripts/testbed`, docs/testbed.md."""
