"""Code of the driver's process in which Spark commits a write. It loads no numpy and pyarrow."""
