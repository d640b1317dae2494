"""Helpers of the tests: clusters, processes, independent readers."""
