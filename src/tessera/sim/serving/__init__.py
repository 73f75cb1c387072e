"""Model servers under a trace of requests: replicas that start, serve, drain, and who decides how many there are."""
