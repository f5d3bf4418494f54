"""Requests as bytes, replies as bytes: what every transport has in common, without one."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from small_world import AT_ONCE, LAYOUT, SIZES, HandClock, joined, train_order, update
from wire_frames import raw

from elephas_like.core.types import Order
from elephas_like.exchange import protocol, wire
from elephas_like.exchange.request_handler import FitRequestHandler
from elephas_like.exchange.round_store import RoundStore


def open_handler(num_workers: int = 1, **waits: object) -> tuple[FitRequestHandler, RoundStore, HandClock]:
    clock = HandClock()
    store = RoundStore(num_workers, LAYOUT.hash, waits=replace(AT_ONCE, **waits), clock=clock)  # type: ignore[arg-type]
    return FitRequestHandler(store, SIZES), store, clock


def said(handler: FitRequestHandler, request: bytes, length: int | None = None) -> tuple[int, protocol.Message, bytes]:
    """(status, reply, what was left unread of a request, before the next one on the same connection)."""
    source = io.BytesIO(request + b"next")
    reply = handler.serve(source, len(request) if length is None else length)
    frame = b"".join(bytes(chunk) for chunk in reply.chunks)
    return reply.status, wire.decode(io.BytesIO(frame), len(frame), SIZES), source.read()


def test_a_worker_is_led_from_its_first_contact_to_the_end() -> None:
    handler, store, _ = open_handler()

    def told(message: protocol.Message) -> protocol.Message:
        status, reply, rest = said(handler, raw(message))
        assert (status, rest) == (200, b"next")
        return reply

    assert told(protocol.Announce(0, 100, "host-0")) == protocol.Sign("done")
    assert told(protocol.Beat(0, 100)) == protocol.Sign("done")
    assert told(joined()) == Order("wait")
    assert told(protocol.Next(0, 100)) == Order("wait")
    updates = store.train(train_order(0, 1.0, 2.0))
    order = told(protocol.Next(0, 100))
    assert isinstance(order, Order)
    assert order.state is not None
    assert (order.kind, order.number, order.state.weights.tolist()) == ("train", 0, [1.0, 2.0])
    assert told(protocol.Beat(0, 100, 9)) == protocol.Sign("done")
    assert told(protocol.Offer(0, 100, 0, 10_000)) == protocol.Sign("send")
    assert told(protocol.Answer(100, update(0, 0, 3.0, 4.0))) == Order("wait")
    assert [one.delta.tolist() for one in updates] == [[3.0, 4.0]]
    store.stop()
    for message in (protocol.Announce(0, 100, "host-0"), protocol.Beat(0, 100), joined(), protocol.Next(0, 100)):
        assert told(message) == Order("stop")


def test_an_answer_that_nobody_wants_is_read_over_and_not_applied() -> None:
    handler, store, _ = open_handler(2)
    said(handler, raw(joined()))
    updates = store.train(train_order())
    answer = raw(protocol.Answer(100, update(0, 0, 3.0, 4.0)))
    for _ in range(2):
        assert said(handler, answer) == (200, Order("wait"), b"next")
    assert next(updates).delta.tolist() == [3.0, 4.0]
    assert store.dropped == 1


def test_an_answer_for_which_there_is_no_room_is_read_over_and_asked_for_again() -> None:
    handler, store, _ = open_handler(2, read_ahead=0)
    said(handler, raw(joined(1)))
    store.train(train_order())
    assert said(handler, raw(protocol.Answer(100, update(1)))) == (200, protocol.Sign("again"), b"next")
    assert said(handler, raw(protocol.Offer(1, 100, 0, 1))) == (200, protocol.Sign("again"), b"next")


def test_an_answer_that_is_cut_short_gives_its_room_back_and_may_come_again() -> None:
    handler, store, _ = open_handler(2, read_ahead=200)
    said(handler, raw(joined(1)))
    store.train(train_order())
    answer = raw(protocol.Answer(100, update(1)))
    status, reply, _ = said(handler, answer[:-8], len(answer))
    assert status == 400
    assert isinstance(reply, protocol.Refusal)
    assert store._reserved == {}
    assert said(handler, answer)[:2] == (200, Order("wait"))


def test_a_failure_of_the_server_is_said_and_gives_the_room_back(caplog: pytest.LogCaptureFixture) -> None:
    handler, store, _ = open_handler(2, read_ahead=200)
    said(handler, raw(joined(1)))
    store.train(train_order())
    answer = raw(protocol.Answer(100, update(1)))

    class TooLarge(io.BytesIO):
        """There is no memory for the end of the answer."""

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if self.tell() + len(buffer) >= len(answer):
                raise MemoryError("Unable to allocate 3 GiB")
            return super().readinto(buffer)

    reply = handler.serve(TooLarge(answer), len(answer))
    frame = b"".join(bytes(chunk) for chunk in reply.chunks)
    told = wire.decode(io.BytesIO(frame), len(frame), SIZES)
    assert isinstance(told, protocol.Refusal)
    assert (reply.status, told.type_name) == (409, "ElephasError")
    assert told.message == "the server failed with MemoryError: Unable to allocate 3 GiB"
    assert "a request could not be answered" in caplog.text
    assert store._reserved == {}
    assert said(handler, answer)[:2] == (200, Order("wait"))


def test_a_broken_connection_is_no_failure_of_the_server() -> None:
    handler, store, _ = open_handler(2, read_ahead=200)
    said(handler, raw(joined(1)))
    store.train(train_order())
    answer = raw(protocol.Answer(100, update(1)))

    class Broken(io.BytesIO):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if self.tell() + len(buffer) >= len(answer):
                raise ConnectionResetError
            return super().readinto(buffer)

    with pytest.raises(ConnectionResetError):
        handler.serve(Broken(answer), len(answer))
    assert store._reserved == {}


def test_a_reading_that_fails_late_takes_no_room_from_a_successor() -> None:
    handler, store, clock = open_handler(2, lease_seconds=10.0)
    said(handler, raw(joined(1, 100)))
    store.train(train_order())
    answer = raw(protocol.Answer(100, update(1)))

    class TakenOver(io.BytesIO):
        """In the middle of the answer another attempt takes the place, and offers its own."""

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if self.tell() + len(buffer) >= len(answer):
                clock.now += 100.0
                store.join(joined(1, 200))
                assert store.offer(1, 200, 0, 5000) == "send"
                return 0
            return super().readinto(buffer)

    reply = handler.serve(TakenOver(answer), len(answer))
    assert reply.status == 400
    assert store._reserved == {1: 5000}


@pytest.mark.parametrize(
    ("request_", "status", "type_name", "words"),
    [
        (
            raw(protocol.Next(0, 100)),
            409,
            "SupersededError",
            "attempt 100 of worker 0 has lost its place to attempt 200",
        ),
        (raw(protocol.Answer(100, update())), 409, "SupersededError", "lost its place"),
        (raw(protocol.Next(1, 100)), 409, "ElephasError", "worker 1 to join before anything else"),
        (raw(joined(7)), 409, "ElephasError", "from 0 to 1 to join, got worker 7"),
        (raw(protocol.Answer(200, update(0, 5))), 409, "ElephasError", "worker 0 answers order 5"),
        (raw(train_order()), 400, "FrameError", "expected a worker's request, got a Order"),
        (b"\x80\x04\x95" + b"x" * 200, 400, "FrameError", "begins with"),
        (b"", 400, "FrameError", "expected a frame of"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(
    request_: bytes, status: int, type_name: str, words: str
) -> None:
    handler, store, _ = open_handler(2, lease_seconds=0.0)
    store.join(joined(0, 100))
    store.join(joined(0, 200))
    store.train(train_order())
    found, reply, _ = said(handler, request_)
    assert isinstance(reply, protocol.Refusal)
    assert (found, reply.type_name) == (status, type_name)
    assert words in reply.message


def test_a_report_fails_the_run() -> None:
    handler, store, _ = open_handler()
    report = protocol.Report(0, 100, "ValueError", "no column 'price'", "Traceback: here")
    assert said(handler, raw(report)) == (200, protocol.Sign("done"), b"next")
    with pytest.raises(ValueError, match="no column 'price'"):
        store.joined()


def test_no_request_is_larger_than_an_answer_can_be() -> None:
    handler, _, _ = open_handler()
    assert handler.most == SIZES.most
    status, reply, rest = said(handler, b"x" * 100, SIZES.most + 1)
    assert isinstance(reply, protocol.Refusal)
    assert (status, reply.type_name, rest) == (400, "FrameError", b"x" * 100 + b"next")  # not a byte of it was read


def test_an_order_is_encoded_once_for_all_workers() -> None:
    handler, store, _ = open_handler(2)
    store.train(train_order())
    replies = [handler.serve(io.BytesIO(frame), len(frame)) for frame in (raw(joined(0)), raw(joined(1)))]
    assert replies[0].chunks is replies[1].chunks
