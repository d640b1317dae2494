"""Programs that run to their end: other Pythons, other environments, forked children."""
