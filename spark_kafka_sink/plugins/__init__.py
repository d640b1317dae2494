"""Load user code, and call it in a way that its exceptions do not stop a producer."""
