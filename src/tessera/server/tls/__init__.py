"""Certificates of a server: renewed while it runs, and made by the servers themselves."""
