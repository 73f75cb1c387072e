"""The pods of this node: what they have, what is written on them, and whose signatures count."""
