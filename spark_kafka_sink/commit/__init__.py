"""State machines of exactly-once writes. They do no I/O: replies and the time are arguments."""
