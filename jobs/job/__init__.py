"""What the jobs share: arguments, rows, a broker, progress, comparison of topics."""
