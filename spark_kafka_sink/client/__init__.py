"""The threads of a producer and the state that they share: callers add rows, one thread sends."""
