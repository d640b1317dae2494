"""Load user code, and call it so that its exceptions do not stop a producer."""
