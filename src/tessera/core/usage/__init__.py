"""How are GPUs used, by whom, and which metrics say so? Measurements, their containers, metrics, recommendations."""
