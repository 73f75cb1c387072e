"""The dashboard page's JSON."""
