"""Arrow columns to record batches: pure functions, no sockets, threads or clock."""
