"""The model of docs/scaling.md: the load of a job with very many tasks on a cluster."""
