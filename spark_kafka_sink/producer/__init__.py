"""The producer's state machines. They do no I/O: callers pass in events and the time."""
