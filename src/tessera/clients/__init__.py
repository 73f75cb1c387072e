"""All contact with the outside; each package: Protocol, real client, in-memory client."""
