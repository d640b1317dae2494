"""The logging state of a process: a test must not change it for later tests."""

from __future__ import annotations

import logging

from spark_kafka_sink import logs

_PACKAGE = "spark_kafka_sink"


def logging_state() -> dict[str, object]:
    """Return the settings that decide which messages of the sink are logged, by name.

    Of the sink's loggers, only those that differ from a new logger are returned.
    """
    found: dict[str, object] = {
        "logging.disable": logging.root.manager.disable,
        "logging.getLoggerClass": logging.getLoggerClass(),
        "logging.getLogRecordFactory": logging.getLogRecordFactory(),
        "logging.raiseExceptions": logging.raiseExceptions,
        "warnings_disabled": logs._warnings_disabled.get(),
        "never_raise_from_logging": logs._never_raises.get(),
        "root": _state(logging.root),
    }
    unchanged = _state(logging.Logger("new"))  # noqa: LOG001 - it is in no registry
    for name, logger in list(logging.root.manager.loggerDict.items()):
        is_ours = name == _PACKAGE or name.startswith(f"{_PACKAGE}.")
        if is_ours and isinstance(logger, logging.Logger) and _state(logger) != unchanged:
            found[f"logger {name}"] = _state(logger)
    return found


def _state(logger: logging.Logger) -> dict[str, object]:
    return {
        "level": logger.level,
        "disabled": logger.disabled,
        "propagate": logger.propagate,
        "handlers": list(logger.handlers),
        "filters": list(logger.filters),
        "class": type(logger),
    }
