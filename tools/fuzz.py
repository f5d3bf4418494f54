"""Coverage-guided fuzzing of what the server reads: frames, and whole conversations of a stranger who knows the token.

    pip install atheris
    python tools/fuzz.py frames|requests [--seconds 600]

frames    A header and its buffers: a message comes out, or FrameError.
requests  Several of them, one after the other, to the handler of a fit that has a worker and an order: every reply is a frame
          of status 200, 400 or 409, a fit is never ended by one that was refused, and nothing stays reserved by it.

Atheris (Google's fuzzer for Python) looks for inputs that reach new lines. What it found is kept as tests: tests/exchange/
test_wire.py and test_request_handler.py, where hypothesis draws frames without a guide in every run.
"""

from __future__ import annotations

import argparse
import io
import logging
import struct
import sys
import tempfile
from pathlib import Path

import atheris
import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "exchange")]

with atheris.instrument_imports(include=["elephas_like.exchange", "elephas_like.core.types"]):
    from small_world import AT_ONCE, LAYOUT, SIZES, HandClock, joined, train_order, update

    from elephas_like.core.types import Evaluation, Order, Recollection
    from elephas_like.exchange import protocol, wire
    from elephas_like.exchange.request_handler import FitRequestHandler
    from elephas_like.exchange.round_store import RoundStore

PARTS = b"\x00\xff\x00"
"""Between the header and the buffers of a frame, and between frames."""


def frame_of(part: bytes) -> bytes:
    """A frame whose length of the header is true, so that mutations get past it."""
    header, _, buffers = part.partition(PARTS)
    return protocol.MAGIC + struct.pack("<I", len(header)) + header + buffers


def part_of(message: protocol.Message) -> bytes:
    """What `frame_of` makes the message's frame of."""
    frame = b"".join(bytes(chunk) for chunk in wire.encode(message))
    (length,) = struct.unpack("<I", frame[4:8])
    return frame[8 : 8 + length] + PARTS + frame[8 + length :]


def one_frame(data: bytes) -> None:
    """Decode a frame."""
    frame = frame_of(data)
    try:
        message = wire.decode(io.BytesIO(frame), len(frame), SIZES)
    except wire.FrameError:
        return
    assert isinstance(message, protocol.Message)


def conversation(data: bytes) -> None:
    """Serve several requests in a fit of two workers, of which one has an order."""
    store = RoundStore(2, LAYOUT.hash, waits=AT_ONCE, clock=HandClock())
    handler = FitRequestHandler(store, SIZES)
    store.join(joined(0))
    store.train(train_order())
    for part in data.split(PARTS + PARTS):
        frame = frame_of(part)
        failed, reserved = store._failure, dict(store._reserved)
        reply = handler.serve(io.BytesIO(frame), len(frame))
        assert reply.status in (200, 400, 409)
        answer = b"".join(bytes(chunk) for chunk in reply.chunks)
        assert isinstance(wire.decode(io.BytesIO(answer), len(answer), SIZES), protocol.Message)
        if reply.status == 400:
            assert store._failure is failed
            assert set(store._reserved) <= set(reserved)


def seeds() -> list[protocol.Message]:
    """A message of each kind."""
    return [
        protocol.Announce(1, 100, "here"),
        joined(1),
        protocol.Next(0, 100),
        protocol.Offer(0, 100, 0, 1000),
        protocol.Beat(0, 100, 3),
        protocol.Answer(100, update()),
        protocol.Answer(100, Evaluation(0, 0, 4, np.ones(2))),
        protocol.Answer(100, Recollection(0, 0, {"residual": np.ones(2, np.float32)})),
        protocol.Report(0, 100, "ValueError", "message", "traceback"),
        protocol.Sign("done"),
        protocol.Refusal("FrameError", "message"),
        protocol.TrialProgress(0, 1, 2, {"loss": 1.0}),
        train_order(),
        Order("wait"),
    ]


def main() -> None:
    """Fuzz one of the two until something is found, or for so many seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["frames", "requests"])
    parser.add_argument("--seconds", type=int, default=600)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    parts = [part_of(message) for message in seeds()]
    inputs = (
        parts if options.what == "frames" else [*parts, (PARTS + PARTS).join(parts), (PARTS + PARTS).join(parts[1:7])]
    )
    target = one_frame if options.what == "frames" else conversation
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(inputs):
            (Path(folder) / str(number)).write_bytes(data)
        limits = ["-max_len=8192", "-rss_limit_mb=4096", f"-max_total_time={options.seconds}", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *limits, folder], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
