"""The threads of a producer, and the state that callers share with the I/O thread."""
