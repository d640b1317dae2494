"""Code of the driver's process in which Spark plans a write. It loads neither numpy nor pyarrow."""
