"""Who uses what of GPUs: what is measured, whose it is, what is exposed of it, what fits better."""
