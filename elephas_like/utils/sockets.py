"""Elephas' import path for sockets and the driver's address."""

from elephas_like.compat.framing import (
    determine_master,
    receive,
    recv_bytes,
    send,
    send_bytes,
    wait_until_listening,
)

__all__ = ["determine_master", "receive", "recv_bytes", "send", "send_bytes", "wait_until_listening"]
