"""Columns as users have them to columns as records need them: pure functions over Arrow."""
