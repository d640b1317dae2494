"""A schema registry on 127.0.0.1, with Confluent's rules and error codes, and faults on request."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

Json: TypeAlias = dict[str, Any]


class Call(NamedTuple):
    """A request that came in. path: the parts of the path, decoded."""

    method: str
    path: tuple[str, ...]
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Json

    def __str__(self) -> str:
        return f"{self.method} /{'/'.join(self.path)}"


@dataclass(frozen=True)
class Reply:
    """A response. body: a JSON object, or the bytes to send, one after the other, as they are."""

    status: int
    body: Json | list[bytes] | Iterator[bytes]
    headers: dict[str, str] = field(default_factory=dict)


def error(status: int, code: int, message: str) -> Reply:
    """Return an error as Confluent's registry returns it."""
    return Reply(status, {"error_code": code, "message": message})


class RegistryServer:
    """A schema registry. `calls` has the requests so far.

    authorization: the only header Authorization that is allowed, None for any. faults: the replies
    to the next requests, in place of the true ones; None is the true one. fault: in place of every
    reply, unless it returns None. mode: READWRITE or READONLY. has_guids: whether schemas have
    GUIDs, as in version 8.0. contexts: the schemas of each other context by id, which the parameter
    ``subject`` of a request chooses. is_compatible: whether a schema may follow another in a
    subject.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.calls: list[Call] = []
        self.authorization: str | None = None
        self.faults: list[Reply | None] = []
        self.fault: Callable[[Call], Reply | None] = lambda call: None
        self.has_guids = False
        self.mode = "READWRITE"
        self.is_compatible: Callable[[Json, Json], bool] = lambda new, old: True
        # Versions by subject. A version is its id; `schemas` has what an id stands for.
        self.subjects: dict[str, list[int]] = {}
        self.schemas: dict[int, Json] = {}
        self.contexts: dict[str, dict[int, Json]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._scheme = "http"
        if context is not None:
            self._scheme = "https"
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the registry."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        """Be away: connections are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def asked(self) -> list[str]:
        """Return the requests since the last call of this method, as texts."""
        with self._lock:
            found = [str(call) for call in self.calls]
            self.calls.clear()
        return found

    def add(self, subject: str, schema: object, **more: object) -> int:
        """Add a version to a subject, and return its id. more: such as references or ruleSet."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found: Json = {"schema": text, **more}
        known = [number for number, each in self.schemas.items() if each == found]
        schema_id = known[0] if known else len(self.schemas) + 1
        self.schemas[schema_id] = found
        self.subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def reply(self, call: Call) -> Reply:
        """Return the response to a request."""
        with self._lock:
            self.calls.append(call)
            fault = self.faults.pop(0) if self.faults else self.fault(call)
            if fault is not None:
                return fault
            given = call.headers.get("authorization")
            if self.authorization is not None and given != self.authorization:
                return error(401, 401, "Unauthorized")
            return self._true(call)

    def _true(self, call: Call) -> Reply:
        match [call.method, *call.path]:
            case ["GET", "schemas", "ids", number]:
                return self._schema(int(number), *call.query.get("subject", []))
            case ["GET", "schemas", "guids", guid] if self.has_guids:
                return self._schema(next((n for n in self.schemas if guid_of(n) == guid), 0))
            case ["GET", "subjects", subject, "versions", version]:
                return self._version(subject, version)
            case ["POST", "subjects", subject]:
                return self._lookup(subject, call.body)
            case ["POST", "subjects", subject, "versions"]:
                return self._register(subject, call.body)
        return error(404, 404, "HTTP 404 Not Found")

    def _schema(self, schema_id: int, subject: str = "") -> Reply:
        context = subject.split(":")[1] if subject.startswith(":.") else ""
        schemas = self.contexts.get(context, {}) if context else self.schemas
        if schema_id not in schemas:
            return error(404, 40403, "Schema not found")
        return Reply(200, schemas[schema_id] | self._guid(schema_id))

    def _guid(self, schema_id: int) -> Json:
        return {"guid": guid_of(schema_id)} if self.has_guids else {}

    def _version(self, subject: str, version: str) -> Reply:
        versions = self.subjects.get(subject)
        if versions is None:
            return error(404, 40401, f"Subject '{subject}' not found.")
        number = len(versions) if version == "latest" else int(version)
        if not 0 < number <= len(versions):
            return error(404, 40402, f"Version {version} not found.")
        schema_id = versions[number - 1]
        more = {"subject": subject, "version": number, "id": schema_id, **self._guid(schema_id)}
        return Reply(200, {**self.schemas[schema_id], **more})

    def _lookup(self, subject: str, body: Json) -> Reply:
        versions = self.subjects.get(subject)
        if versions is None:
            return error(404, 40401, f"Subject '{subject}' not found.")
        for number, schema_id in enumerate(versions, 1):
            if _parsed(self.schemas[schema_id]) == _parsed(body):
                return self._version(subject, str(number))
        return error(404, 40403, "Schema not found")

    def _register(self, subject: str, body: Json) -> Reply:
        if self.mode == "READONLY":
            return error(422, 42205, f"Subject {subject} is in read-only mode")
        try:
            new = _parsed(body)
        except ValueError:
            return error(422, 42201, "Invalid schema")
        there = self._lookup(subject, body)
        if there.status == 200 and isinstance(there.body, dict):
            return Reply(200, {"id": there.body["id"], **self._guid(there.body["id"])})
        versions = self.subjects.get(subject, [])
        if versions and not self.is_compatible(new, _parsed(self.schemas[versions[-1]])):
            return error(409, 409, "Schema being registered is incompatible with an earlier schema")
        schema_id = self.add(subject, **body)
        return Reply(200, {"id": schema_id, **self._guid(schema_id)})


def guid_of(schema_id: int) -> str:
    """Return the GUID of a schema."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(schema_id)))


def _parsed(schema: Json) -> Json:
    """Return a schema without the whitespace of its text."""
    return {"schemaType": "AVRO", **schema, "schema": json.loads(schema["schema"])}


def _handler(outer: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: Json) -> None:
            url = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            path = tuple(map(unquote, url.path.strip("/").split("/")))
            reply = outer.reply(Call(self.command, path, parse_qs(url.query), headers, body))
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            parts = reply.body
            if isinstance(parts, dict):
                parts = [json.dumps(parts).encode()]
                self.send_header("Content-Length", str(len(parts[0])))
            self.end_headers()
            try:
                for part in parts:
                    self.wfile.write(part)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


@contextmanager
def registry_server(context: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    """Run a registry during the block. context: of TLS, None for plain HTTP."""
    server = RegistryServer(context)
    try:
        yield server
    finally:
        server.stop()


def basic(user: str, password: str) -> str:
    """Return the header Authorization for a user and a password."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
