"""The threads of a producer and what they share: from a caller's rows to the I/O thread."""
