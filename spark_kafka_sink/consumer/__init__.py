"""Read ranges of topics without consumer groups: for recovery, commit logs and tests."""
