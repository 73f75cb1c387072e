"""`tessera run`, `notebook`, `environments`, `jobs`, `attach`, `logs` and `stop`: work on a GPU without YAML."""
