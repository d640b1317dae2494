"""Transactions of a producer (KIP-98, KIP-890) as pure state machines."""
