"""The model of docs/scaling.md: what a job of very many tasks is to a cluster."""
