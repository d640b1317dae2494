"""Bytes to messages and back: pure functions, no sockets, threads or clock."""
