"""A real Kubernetes on one Linux machine, to try Tessera on and to test it with: `scripts/testbed`, docs/testbed.md.

And what is generated of the documentation, the chart and the dashboards: `scripts/generate`.
"""
