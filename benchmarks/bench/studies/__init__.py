"""Measurements of one question each, whose answers stand in the documents."""
