"""The user's own driver process: registration, hooks into Spark's writers, DataFrame helpers."""
