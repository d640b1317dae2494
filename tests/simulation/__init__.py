"""A deterministic cluster in memory that runs the real producer against seeded faults."""
