"""Connections to brokers: the only package that touches sockets."""
