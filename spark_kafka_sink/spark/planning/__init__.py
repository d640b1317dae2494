"""Code that runs in Spark's planning process, on the driver. It loads neither numpy nor pyarrow."""
