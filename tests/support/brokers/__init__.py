"""Real brokers, and peers on loopback sockets that a test scripts."""
