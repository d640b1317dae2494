"""Code of the process in which Spark commits a write. It loads neither numpy nor pyarrow."""
