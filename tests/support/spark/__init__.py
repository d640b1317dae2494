"""Spark sessions, servers and jobs."""
