"""Code that runs in Spark's commit process. It loads neither numpy nor pyarrow."""
