"""Exactly once, proved: a model of brokers and drivers that runs the real machines of `commit`."""
