"""Independent readers and writers: what tests compare this package with."""
