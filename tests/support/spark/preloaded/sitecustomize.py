"""Let a daemon of Spark's workers import what each worker would import again.

Python imports a module of this name when it starts, if it is on the path. A process that forks must
have one thread: NumPy's has no others here, and pyarrow, which starts some, is not among the
modules.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # A worker says by itself which module is missing.
    with contextlib.suppress(ImportError):
        for name in (*sys.orig_argv[3:4], "pyspark.sql.pandas.serializers", "numpy"):
            importlib.import_module(name)
    # Workers share the memory of all objects that there are by now.
    gc.freeze()
