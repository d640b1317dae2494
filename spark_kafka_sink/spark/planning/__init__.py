"""The process on the driver in which Spark plans a write. It loads neither numpy nor pyarrow."""
