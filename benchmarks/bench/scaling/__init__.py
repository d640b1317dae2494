"""The model of docs/contributing/scaling.md: the load of a job with very many tasks."""
