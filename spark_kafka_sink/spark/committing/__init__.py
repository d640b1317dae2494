"""Code for the driver's process in which Spark commits a write, without numpy and pyarrow."""
