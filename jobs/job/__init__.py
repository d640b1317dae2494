"""Shared code of the jobs: arguments, rows, a broker, progress, comparison of topics."""
