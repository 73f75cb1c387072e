"""All contact with the outside; each package has a Protocol, a real client and an in-memory one."""
