"""The process in which Spark runs a task of a write."""
