"""Hooks into the methods of Spark's writers, for one clear error before a job starts."""
