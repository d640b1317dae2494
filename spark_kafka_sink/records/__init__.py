"""Arrow columns to record batches and back: pure functions without sockets, threads or clock."""
