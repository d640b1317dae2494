"""Topics read from here to there, without consumer groups: for recovery, commit logs and tests."""
