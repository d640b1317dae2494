"""The state machines of exactly once: pure, with answers of brokers and the time as arguments."""
