"""Read ranges of topics without consumer groups, for recovery, the commit log and tests."""
