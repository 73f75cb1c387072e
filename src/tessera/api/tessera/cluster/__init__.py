"""A cluster in Tessera's formats: fleets from files and from objects, and plans."""
