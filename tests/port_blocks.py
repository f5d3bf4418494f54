"""Ports that lie side by side, for ranges of ports: found by taking them, so that no test has a fixed one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def taken_ports(size: int, host: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Sockets that listen on so many ports side by side, by number. Closing one frees its port."""
    while True:
        with ExitStack() as stack:
            block = [stack.enter_context(socket.create_server((host, 0)))]
            first = port_of(block[0])
            try:
                for port in range(first + 1, first + size):
                    block.append(stack.enter_context(socket.create_server((host, port))))
            except (OSError, OverflowError):  # a port of the block is taken, or above 65535: look elsewhere
                continue
            yield block
            return


def port_of(listener: socket.socket) -> int:
    """The port on which a socket listens."""
    return int(listener.getsockname()[1])


def range_of(block: list[socket.socket]) -> str:
    """The range of a block's ports, as users write it."""
    return f"{port_of(block[0])}:{port_of(block[-1])}"
