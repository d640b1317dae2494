"""Encode and decode messages of Kafka's protocol, in pure functions without sockets or threads."""
