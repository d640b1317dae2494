"""The process on the driver in which Spark commits a write. It loads neither numpy nor pyarrow."""
