"""A program with a Python process of its own, in the JVM of a Spark session that runs already.

The program's changes in Spark's Python classes end with it. In a JVM of its own, it would take
several times the processor time.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

_TESTS = Path(__file__).resolve().parents[2]


def run(
    spark: SparkSession, command: Sequence[str | Path], timeout_s: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end; its `session` is a new one in the JVM of `spark`."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.java_parameters
    environment = os.environ | {
        "PYSPARK_GATEWAY_PORT": str(java.port),
        "PYSPARK_GATEWAY_SECRET": java.auth_token,
        "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    try:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    finally:
        # The program's session is the default one now, and its functions are called back.
        classic = gateway.jvm.org.apache.spark.sql.classic
        classic.SparkSession.setDefaultSession(spark._jsparkSession)
        called_back = gateway.__dict__.get("_callback_server")
        if called_back is not None:
            server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
            address = server.getCallbackClient().getAddress()
            server.resetCallbackClient(address, called_back.port)


def session() -> SparkSession:
    """Return a new session in the JVM that runs already, and make it the default one there.

    Do not stop it: the JVM's other sessions would end, too.
    """
    gateway = launch_gateway()  # type: ignore[no-untyped-call] # Spark's
    jvm = gateway.jvm
    running = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    java = jvm.JavaSparkContext.fromSparkContext(running.sparkContext())
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    return SparkSession(context, running.newSession())
