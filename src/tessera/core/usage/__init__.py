"""Who uses what of GPUs: measurements, their containers, metrics, recommendations."""
