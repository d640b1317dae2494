"""Kafka's schemas of the messages about delegation tokens (4.3.1), which kafka-python lacks."""
