"""A cluster in Tessera's formats: fleets from files and from objects, plans, and the dashboard page's view."""
