"""The pure layers without sockets, clock and threads: a test plays the other side."""
