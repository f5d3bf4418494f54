"""Writing to a connection."""

from __future__ import annotations

import socket

from small_world import taken

from elephas_like.exchange.lines import send


def test_where_a_socket_writes_one_buffer_at_a_time_all_of_them_arrive() -> None:
    """As on Windows, whose sockets have no `sendmsg`."""

    class Plain:
        def __init__(self, connection: socket.socket) -> None:
            self._connection = connection

        def send(self, buffer: memoryview) -> int:
            return self._connection.send(buffer[:3])

    one, other = socket.socketpair()
    with one, other:
        send(Plain(one), [b"ab", b"", b"cdefgh", memoryview(b"i")])  # type: ignore[arg-type]
        assert taken(other, 9) == b"abcdefghi"
