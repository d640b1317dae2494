"""The user's own process: registration, hooks into Spark's writers, and helpers for DataFrames."""
