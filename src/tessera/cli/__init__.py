"""The composition root: one thin module per command group. Reads arguments, wires, calls one function, prints."""
