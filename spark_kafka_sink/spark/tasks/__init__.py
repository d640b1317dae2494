"""Code of the worker process in which Spark runs a task of a write."""
