"""Hooks into the methods of Spark's writers, so that errors are raised before a job starts."""
