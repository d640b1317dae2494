"""Convert Arrow columns to record batches and back: pure functions without sockets or threads."""
