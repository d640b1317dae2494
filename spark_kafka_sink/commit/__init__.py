"""State machines of exactly once. They do no I/O: responses and the time are arguments."""
