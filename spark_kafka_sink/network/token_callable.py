"""Tokens from a user's Python callable: importing the callable, and checking its result.

The callable may raise any exception. No message shows its result or the text of its exception,
because either may contain a token or a password.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Self

from spark_kafka_sink.auth.oauthbearer import OAuthBearerToken, bearer_token
from spark_kafka_sink.auth.token_renewal import TokenException
from spark_kafka_sink.errors import ConfigException

_RETURNS: Final = (
    "expected a token and its expiry time, in seconds since 1970, or these and a mapping with "
    "extensions"
)
# Milliseconds from 2001 to 2286. As seconds, these values would be after the year 33658, so a time
# in this range is an error.
_MILLISECONDS: Final = (1e12, 1e13)


@dataclass(slots=True)
class TokenCallable:
    """A user's callable.

    named: the object with the name in the option: the callable, or a class of callables.
    """

    named: Callable[[], object]
    # An instance of `named` if it is a class. It is made at the first call, because the constructor
    # may take a long time.
    _instance: Callable[[], object] | None = None

    @classmethod
    def load(cls, option: str, name: str, shown: str) -> Self:
        """Import the callable.

        shown: the name as messages show it. Raise ConfigException if the name cannot be imported,
        is not callable, or is a class whose instances are not callable.
        """
        return cls(_load(option, name, shown))

    def token(self, extensions: dict[str, str]) -> OAuthBearerToken:
        """Return the token from the callable. This may take a long time.

        Raise TokenException if it returns no valid token, or if no instance of it can be made.
        """
        call = self._callable()
        try:
            found = call()
        except BaseException as error:  # noqa: BLE001 - a user's own, which may raise anything
            # The message may contain a URL with credentials, or a secret.
            why = f"it raised {type(error).__name__}{_place(error)}"
        else:
            return _checked(found, extensions)
        raise TokenException(why)

    def _callable(self) -> Callable[[], object]:
        if not isinstance(self.named, type):
            return self.named
        if self._instance is None:
            try:
                self._instance = self.named()
            except BaseException as error:  # noqa: BLE001 - a user's own, which may raise anything
                why = f"no instance of it can be made ({type(error).__name__}{_place(error)})"
                # A constructor that needs arguments never works.
                is_final = isinstance(error, TypeError)
            else:
                return self._instance
            raise TokenException(why, is_final=is_final)
        return self._instance


def _load(option: str, name: str, shown: str) -> Callable[[], object]:
    module, _, attribute = name.rpartition(".")
    try:
        found: Callable[[], object] | None = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        # The name of the missing module may come from a reference, which is not shown.
        missing = f"no module named {error.name!r}" if shown == name else type(error).__name__
        why = f"cannot be imported ({missing})"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        why = f"cannot be imported ({type(error).__name__})"
    else:
        kinds = found.__mro__ if isinstance(found, type) else ()
        if callable(found) and (not kinds or any("__call__" in vars(each) for each in kinds)):
            return found
        why = "is not in that module" if found is None else "cannot be called"
        if kinds:
            why = "is a class without a method __call__"
    raise ConfigException(
        f"{option} is {shown!r}, which {why}: expected module.Name of a callable without arguments "
        "that returns a token and its expiry time, in seconds since 1970"
    )


def _checked(found: object, extensions: dict[str, str]) -> OAuthBearerToken:
    """Return the callable's result as a token. Raise TokenException if it is invalid."""
    parts = list(found) if isinstance(found, tuple | list) else []
    more = parts[2] if len(parts) == 3 else {}
    if len(parts) not in (2, 3) or not isinstance(parts[0], str):
        raise TokenException(f"it returned {_kinds(found)}: {_RETURNS}", is_final=True)
    expires_at = parts[1]
    is_number = isinstance(expires_at, int | float) and not isinstance(expires_at, bool)
    is_mapping = isinstance(more, Mapping) and all(
        isinstance(each, str) for pair in more.items() for each in pair
    )
    if not (expires_at is None or is_number) or not is_mapping:
        raise TokenException(f"it returned {_kinds(found)}: {_RETURNS}", is_final=True)
    token = bearer_token(parts[0], time.time(), extensions={**extensions, **more})
    if expires_at is None:
        return token
    try:
        seconds = float(expires_at)
    except OverflowError:
        seconds = math.inf
    if math.isnan(seconds):
        raise TokenException(
            f"it returned NaN as the time when the token expires: {_RETURNS}", is_final=True
        )
    if _MILLISECONDS[0] <= seconds < _MILLISECONDS[1]:
        raise TokenException(
            "it returned a time in milliseconds as the time when the token expires: " + _RETURNS,
            is_final=True,
        )
    return OAuthBearerToken(token.value, seconds, token.issued_at, token.extensions)


def _place(error: BaseException) -> str:
    """Return the place in the user's code where an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"


def _kinds(found: object) -> str:
    """Return the types in a callable's result, not the values, which may be tokens."""
    if isinstance(found, tuple | list):
        return f"({', '.join(type(each).__name__ for each in found[:5])})"
    return f"an object of the type {type(found).__name__}"
