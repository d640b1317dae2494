"""The house itself, measured: its size, its rooms, its words, and the way of one batch."""
