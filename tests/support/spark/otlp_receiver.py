"""A collector of OpenTelemetry on 127.0.0.1 that keeps the spans it receives (OTLP over HTTP)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class ReceivedSpan(NamedTuple):
    """A span; ids in hexadecimal digits, and an empty parent without one."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    attributes: dict[str, Any]
    is_error: bool
    duration_ns: int


class OtlpReceiver:
    """The address of a running collector, and its spans."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.spans: list[ReceivedSpan] = []
        self._lock = threading.Lock()

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans with a name."""
        with self._lock:
            return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        """Keep the spans of a request."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        request = ExportTraceServiceRequest.FromString(body)
        found = [
            ReceivedSpan(
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                attributes={
                    each.key: getattr(each.value, each.value.WhichOneof("value"))
                    for each in span.attributes
                },
                is_error=span.status.code == 2,
                duration_ns=span.end_time_unix_nano - span.start_time_unix_nano,
            )
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.spans += found


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Run a collector for a `with` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = OtlpReceiver(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
