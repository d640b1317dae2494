"""The messages of errors and warnings, as the code of the package makes them.

Details in them are …. The messages are read from the syntax trees of the package, so a message that
nothing raises any more is not found. A *site* is a place that makes an exception, or a Failure of
exactly once. A *warning site* is a place that logs a warning or an error, or prints a line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import spark_kafka_sink
from spark_kafka_sink import errors
from spark_kafka_sink.commit.steps import Failure, FailureKind

PACKAGE: Final = Path(spark_kafka_sink.__file__).parent
KINDS: Final = frozenset(
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.KafkaException)
) | {"ImportError", "ModuleNotFoundError"}
# Functions that make an exception, and the number of the argument that is its message. A ValueError
# is not passed on to users, but its text is part of a message.
_MAKERS: Final = {
    "api_exception": 1, "corrupt": 0, "failure": 0, "Failure": 1, "add_last_line": 1,
    "_Misfit": 0, "ValueError": 0, "NewerFormatError": 0,
}  # fmt: skip
# Functions that log or print a message, and the number of the argument that is the message.
_WARNERS: Final = {
    "say": 0, "print": 0, "AbortResult": 0, "warn_once": 1, "warn_once_now": 1, "logger.log": 1,
}  # fmt: skip
# Calls that do the same with their first argument.
_WARNING_METHODS: Final = {
    "logger": ("warning", "error", "exception", "critical"),
    "warnings": ("warn",),
    "self": ("_log",),
    "self._warnings": ("append",),
}
_DETAIL: Final = "…"
# The details in a message of a logger.
_FORMATTED: Final = re.compile(r"%(?:\.\d+)?[sdrf]")
_DETAILS: Final = re.compile(rf"[{_DETAIL}'\"]*{_DETAIL}[{_DETAIL}'\"]*")
# Texts with fewer letters of their own say nothing to search for. Parts of messages need more.
_FEWEST_LETTERS: Final = 5
_FEWEST_OF_PART: Final = 20


class Site(NamedTuple):
    """A place in the code that makes an error or a warning.

    place: the file in the package and the function, as ``config.py:producer_config``. kind: the
    name of the exception's class, of a Failure too if it has no error code of a broker, or the name
    of the function that makes it; for a warning, the function that logs or prints it. messages:
    what it may say.
    """

    place: str
    kind: str
    messages: tuple[str, ...]


@cache
def sites() -> tuple[Site, ...]:
    """Return all places that make an error."""
    return tuple(site for path in sorted(PACKAGE.rglob("*.py")) for site in _sites_of(path, _made))


@cache
def warning_sites() -> tuple[Site, ...]:
    """Return all places that log a warning or an error, or print a line."""
    files = sorted(PACKAGE.rglob("*.py"))
    return tuple(site for path in files for site in _sites_of(path, _warned))


@cache
def messages(place: str, *, are_warnings: bool = False) -> tuple[str, ...]:
    """Return the messages that a function makes or returns, or that a constant has.

    place: as in `Site`, or a file and the name of a constant. are_warnings: whether to return what
    the function logs or prints, in place of its errors.
    """
    name, _, function = place.partition(":")
    known = warning_sites() if are_warnings else sites()
    made = [message for site in known if site.place == place for message in site.messages]
    returned: list[str] = []
    for qualified, node in _definitions(_tree(PACKAGE / name)):
        if qualified != function:
            continue
        if isinstance(node, ast.FunctionDef):
            scope = _assigned(node)
            values = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
            returned += [text for value in values if value for text in _texts(value, scope)]
            if not any(map(_says_something, (*made, *returned))):
                # It makes a message of several parts.
                parts = [each.value for of_name in scope.values() for each in of_name]
                texts = [text for part in parts for text in _texts(part, {})]
                long = [text for text in texts if _says_something(text, _FEWEST_OF_PART)]
                returned += long or texts
        else:
            returned += _texts(node, {})
    return tuple(dict.fromkeys(text for text in (*made, *returned) if _says_something(text)))


@cache
def _tree(path: Path) -> ast.AST:
    """Return the syntax tree of a module, in which constants that are text have their text."""
    name = ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))
    module = import_module(name.removesuffix(".__init__"))
    tree = ast.parse(path.read_text())
    constants = dict(vars(module))
    for node in ast.walk(tree):
        # A function may import constants, too.
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGE.name):
            for name in (each.name for each in node.names if each.name.isupper()):
                constants.setdefault(name, getattr(import_module(str(node.module)), name))
    with_texts: ast.AST = _WithConstants(constants).visit(tree)
    return with_texts


class _WithConstants(ast.NodeTransformer):
    def __init__(self, constants: Mapping[str, object]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the text of a constant in place of its name."""
        is_constant = node.id.isupper() and isinstance(node.ctx, ast.Load)
        value = self._constants.get(node.id) if is_constant else None
        return ast.copy_location(ast.Constant(value), node) if isinstance(value, str) else node


def _says_something(text: str, fewest: int = _FEWEST_LETTERS) -> bool:
    return sum(letter.isalpha() for letter in text) >= fewest


def _definitions(tree: ast.AST, around: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield functions and the values of constants with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{around}{node.name}"
            if isinstance(node, ast.FunctionDef):
                yield name, node
            yield from _definitions(node, f"{name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield f"{around}{node.target.id}", node.value


def _sites_of(path: Path, of_call: _OfCall) -> Iterator[Site]:
    file = str(path.relative_to(PACKAGE))
    for name, function in _definitions(_tree(path)):
        if not isinstance(function, ast.FunctionDef):
            continue
        scope = _assigned(function)
        for node in _own_nodes(function):
            if isinstance(node, ast.Call) and (made := of_call(node, scope)) is not None:
                yield Site(f"{file}:{name}", *made)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions inside."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            pending += ast.iter_child_nodes(node)


def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.Assign]]:
    found: dict[str, list[ast.Assign]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node)
    return found


# The kind and the messages of what a call makes, None for another call.
_Made: TypeAlias = tuple[str, tuple[str, ...]] | None
_OfCall: TypeAlias = Callable[[ast.Call, dict[str, list[ast.Assign]]], _Made]


def _warned(call: ast.Call, scope: dict[str, list[ast.Assign]]) -> _Made:
    """Return the kind and the messages of the warning that a call logs or prints."""
    function = call.func
    name = ast.unparse(function)
    number = _WARNERS.get(name)
    if number is None and isinstance(function, ast.Attribute):
        name = function.attr
        number = 0 if name in _WARNING_METHODS.get(ast.unparse(function.value), ()) else None
    if number is None or len(call.args) <= number:
        return None
    texts = _texts(call.args[number], _before(call, scope))
    return name, tuple(re.sub(_DETAILS, _DETAIL, re.sub(_FORMATTED, _DETAIL, t)) for t in texts)


def _before(call: ast.Call, scope: dict[str, list[ast.Assign]]) -> dict[str, ast.expr]:
    """Return the last values that names were assigned before a call."""
    return {
        name: max(nodes, key=lambda node: node.lineno).value
        for name, every in scope.items()
        if (nodes := [node for node in every if node.lineno <= call.lineno])
    }


def _made(call: ast.Call, scope: dict[str, list[ast.Assign]]) -> _Made:
    """Return the kind and the messages of the error that a call makes, None for another call."""
    function = call.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    number = 0 if name in KINDS else _MAKERS.get(name)
    end = ""
    if name == "after" and isinstance(function, ast.Attribute):
        # TimeoutException.after(last_error, message): the message goes on with the last error.
        name, number, end = ast.unparse(function.value), 1, _DETAIL
    if number is None or len(call.args) <= number:
        return None
    found = _texts(call.args[number], _before(call, scope))
    texts = tuple(text.removesuffix(end) + end for text in found)
    if name == "add_last_line" and not any(map(_says_something, texts)):
        return None  # it passes a sentence on
    return _kind_of(call, name), texts


def _kind_of(call: ast.Call, name: str) -> str:
    """Return the name of the class that a call of `name` makes, else `name`."""
    kind = call.args[0]
    if name != Failure.__name__ or len(call.args) > 2 or not isinstance(kind, ast.Attribute):
        return name
    return type(Failure(FailureKind[kind.attr], "").exception()).__name__


def _texts(node: ast.AST, scope: dict[str, list[ast.Assign]] | dict[str, ast.expr]) -> list[str]:
    """Return the texts that an expression may be, with … for what is not known."""
    if isinstance(node, ast.Name) and node.id in scope:
        found = scope[node.id]
        nodes = [each.value for each in found] if isinstance(found, list) else [found]
        return [text for each in nodes for text in _texts(each, {})]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, scope), *_texts(node.orelse, scope)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Cause":
        return _texts(node.args[1], scope)
    return [re.sub(_DETAILS, _DETAIL, _text(node))]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # The names in braces of a `Cause` are details, too.
        return re.sub(r"\{\w+\}", _DETAIL, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Option":
        name = node.args[0]
        return str(name.value) if isinstance(name, ast.Constant) else _DETAIL
    return _DETAIL
