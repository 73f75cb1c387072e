"""Tessera's annotations on pods, their signatures, and pods read with them."""
