"""The producer's state machines. They are pure: events and the time are arguments."""
