"""Messages as frames for tests, and frames that no message makes."""

from __future__ import annotations

import io
import json
import struct

from small_world import SIZES

from elephas_like.exchange import protocol, wire


def raw(message: protocol.Message) -> bytes:
    return b"".join(bytes(chunk) for chunk in wire.encode(message))


def decode(frame: bytes, length: int | None = None) -> protocol.Message:
    return wire.decode(io.BytesIO(frame), len(frame) if length is None else length, SIZES)


def frame(header: object, buffers: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return protocol.MAGIC + struct.pack("<I", len(text)) + text + buffers
