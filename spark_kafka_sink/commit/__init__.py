"""State machines of exactly-once writes. They do no I/O: callers pass in replies and the time."""
