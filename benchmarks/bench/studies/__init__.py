"""Measurements of one question each, whose answers are in the documents."""
