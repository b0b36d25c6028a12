"""OTLP's spans in protobuf, in: export requests as a collector receives them or writes them.

A file holds one `ExportTraceServiceRequest`, or several with their length before each, four bytes
with the highest first, as the file exporter of OpenTelemetry's collector writes them. Each becomes
the record that the same request is in OTLP's JSON, so one reader reads both and a span has one id.
Needs the extra `otel`; the package is imported when it is used.

Reference: OpenTelemetry Protocol 1.x; the collector's file exporter, "File Format".
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybridagi_steps.errors import ExchangeError, MissingExtraError
from hybridagi_steps.exchange.records import Record, Skipped
from hybridagi_steps.records.json_reading import JsonObject, as_list, as_object

HEAD = 4_096
"""Bytes that tell protobuf from text."""

_FIELD = 0x0A
"""What a request begins with: its field 1, a message."""
_LENGTH = 4
_ID_FIELDS = ("traceId", "spanId", "parentSpanId")


def is_protobuf(head: bytes) -> bool:
    """Whether a file that begins so holds spans in protobuf; a text may begin with a new line."""
    start = head[_LENGTH : _LENGTH + 1] if head.startswith(b"\0") else head[:1]
    return start == bytes([_FIELD]) and not _is_text(head)


def _is_text(head: bytes) -> bool:
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False


def records(path: Path) -> Iterator[Record | Skipped]:
    """Return the requests of a file as OTLP's JSON, numbered.

    Raises:
        MissingExtraError: opentelemetry-proto is not installed.
        ExchangeError: The file is no protobuf of spans.
    """
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )
    except ImportError as error:
        raise MissingExtraError("spans in protobuf", "otel") from error

    def read() -> Iterator[Record | Skipped]:
        for number, message in enumerate(_messages(path), start=1):
            try:
                request = ExportTraceServiceRequest.FromString(message)
            except DecodeError as error:
                if number == 1:
                    raise ExchangeError(f"{path} is no protobuf of spans: {error}.") from error
                yield Skipped(number, f"no protobuf of spans: {error}")
                continue
            yield Record(number, _with_hexadecimal_ids(MessageToDict(request)))

    return read()


def _messages(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        length = file.read(_LENGTH)
        if length.startswith(bytes([_FIELD])):
            yield length + file.read()
            return
        while length:
            yield file.read(int.from_bytes(length))
            length = file.read(_LENGTH)


def _with_hexadecimal_ids(request: JsonObject) -> JsonObject:
    """Return a request with the ids of its spans as OTLP's JSON writes them, not in base64."""
    for resource in map(as_object, as_list(request.get("resourceSpans"))):
        for scope in map(as_object, as_list(resource.get("scopeSpans"))):
            for span in map(as_object, as_list(scope.get("spans"))):
                for item in (span, *map(as_object, as_list(span.get("links")))):
                    item.update({key: _hexadecimal(item[key]) for key in _ID_FIELDS if key in item})
    return request


def _hexadecimal(encoded: Any) -> str:
    return base64.b64decode(encoded).hex()
