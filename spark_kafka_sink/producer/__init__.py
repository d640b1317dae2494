"""The producer's state machines: pure, with events and the time as arguments."""
