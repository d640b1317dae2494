"""``is_connect``: whether a session or a frame is one of Spark Connect."""

from __future__ import annotations


def is_connect(of: object) -> bool:
    """Tell it by the class, without importing what only Spark Connect has and needs."""
    return ".connect." in type(of).__module__
