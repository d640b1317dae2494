"""What the tests stand on: clusters, processes, independent readers."""
