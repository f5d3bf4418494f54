"""TLS between workers and the driver: the server's certificate, what workers accept, and sockets for both ends.

Workers accept one certificate alone, known by the fingerprint that the driver hands them through Spark. No authority, name or
clock has a say in it, so that a certificate made for the run serves as well as one of the user's own. The handshake proves that
the server has the certificate's key. The key stays on the driver.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import selectors
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from elephas_like.core.errors import ElephasError
from elephas_like.exchange.lines import linger

Files = tuple[str, str]
"""Paths of a certificate (with its chain, if it has one) and of its key, both PEM."""

ALERT = b"\x15\x03\x03\x00\x02\x02\x46"
"""What a client in plain text gets from a server that speaks TLS: a fatal alert, "protocol version"."""
_NO_TLS = b"this server speaks plain text\n"
_HANDSHAKE = b"\x16"
_VALID = timedelta(days=365)
_CLOCKS_DIFFER = timedelta(days=1)

Result = TypeVar("Result")


class TLSError(ElephasError):
    """The other end shows another certificate than the expected one, or one end speaks TLS and the other plain text."""


@dataclass(frozen=True)
class Identity:
    """The server's certificate and key, ready for use. It cannot be pickled.

    fingerprint: SHA-256 of the certificate, in hexadecimal digits: all that workers need.
    """

    context: ssl.SSLContext = field(repr=False)
    fingerprint: str


class EncryptedSocket(ssl.SSLSocket):
    """A TLS socket that does what a plain one does where `ssl.SSLSocket` does something else.

    Its time-out counts the time in which no byte moves, not that of a whole record or buffer. `shutdown` ends the connection;
    an SSLSocket would send what follows in plain text. `sendmsg` takes the first buffer, as TLS cannot gather several.
    """

    _seconds: float | None = None

    def settimeout(self, value: float | None) -> None:
        """Limit the time without a byte, in seconds; None waits for ever."""
        self._seconds = value
        super().settimeout(0.0)

    def gettimeout(self) -> float | None:
        """Return the limit."""
        return self._seconds

    def do_handshake(self, block: bool = False) -> None:
        """Agree on keys with the other end."""
        self._patiently(super().do_handshake)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """Read up to `len` bytes, into `buffer` if there is one."""
        return self._patiently(super().read, len, buffer)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send from the start of `data`. Return how many bytes."""
        return self._patiently(super().send, data, flags)

    def sendmsg(self, buffers: Iterable[Any], *others: Any) -> int:  # type: ignore[override]  # which only raises
        """Send from the first of several buffers. Return how many bytes."""
        return self.send(next(iter(buffers)))

    def shutdown(self, how: int) -> None:
        """End one direction of the connection, or both."""
        socket.socket.shutdown(self, how)

    def _patiently(self, act: Callable[..., Result], *given: Any) -> Result:
        """Return what `act` returns, called again each time that bytes have moved."""
        while True:
            try:
                return act(*given)
            except ssl.SSLWantReadError:
                event = selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                event = selectors.EVENT_WRITE
            _wait(self, event, self._seconds)


_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


def _wait(connection: socket.socket, event: int, seconds: float | None) -> None:
    with _Selector() as selector:
        try:
            selector.register(connection, event)
        except ValueError as error:
            raise ConnectionAbortedError("the connection was closed by another thread") from error
        if not selector.select(seconds):
            raise TimeoutError("timed out")


def identity(files: Files | None = None) -> Identity:
    """Return the certificate and key that a server uses.

    Args:
        files: the user's own; None makes a key and a self-signed certificate.

    Raises:
        ValueError: files that cannot be read or do not belong together, a key with a password, or a certificate that is not
            valid now.
    """
    return _self_signed() if files is None else _own(*files)


def _self_signed() -> Identity:
    from cryptography import x509  # here, as it takes a tenth of a second
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "elephas_like parameter server")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCKS_DIFFER).not_valid_after(now + _VALID)
    certificate = builder.sign(key, hashes.SHA256())
    # OpenSSL loads keys from files only: this one is encrypted, readable by its owner, and gone at once.
    password = secrets.token_urlsafe(32).encode()
    private = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(password))
    context = _server_context()
    with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        path = os.path.join(folder, "server.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(private + certificate.public_bytes(pem.Encoding.PEM))
        context.load_cert_chain(path, password=password)
    return Identity(context, certificate.fingerprint(hashes.SHA256()).hex())


def _own(certificate_file: str, key_file: str) -> Identity:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    given = f"tls=({certificate_file!r}, {key_file!r})"
    context = _server_context()
    try:
        certificate = x509.load_pem_x509_certificate(Path(certificate_file).read_bytes())  # the first is the server's
        context.load_cert_chain(certificate_file, key_file, password="")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{given} must be two files in PEM format on the driver, a certificate and its key without a password; got "
            f"{type(error).__name__}: {error}."
        ) from error
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= datetime.now(UTC) <= end:
        raise ValueError(
            f"{given}: the certificate is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, which is not now. "
            "Renew it, or give tls=True, which makes one for the run."
        )
    return Identity(context, certificate.fingerprint(hashes.SHA256()).hex())


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # nothing resumes a session, and an idle connection with something to read counts as closed
    context.sslsocket_class = EncryptedSocket
    return context


def accepted(connection: socket.socket, own: Identity) -> EncryptedSocket:
    """Return a server's end of a connection, before the handshake: nothing is sent or received yet."""
    return _wrapped(connection, own.context, server_side=True)


def admits(connection: socket.socket, seconds: float) -> bool:
    """Make the handshake on a server's end of a connection, if it is encrypted. Return whether the peer may go on.

    A peer that speaks TLS to a server without, or plain text to a server with TLS, is told so by bytes that it cannot take for a
    reply.

    Args:
        seconds: longest time without a byte.

    Raises:
        OSError: the handshake failed, or nothing came.
    """
    encrypted = isinstance(connection, EncryptedSocket)
    _wait(connection, selectors.EVENT_READ, seconds)
    first = socket.socket.recv(connection, 1, socket.MSG_PEEK)
    if first and (first == _HANDSHAKE) != encrypted:
        socket.socket.send(connection, ALERT if encrypted else _NO_TLS)
        linger(connection)
        return False
    if first and encrypted:
        connection.settimeout(seconds)
        connection.do_handshake()  # type: ignore[attr-defined]  # an EncryptedSocket
    return bool(first)


def to_server(connection: socket.socket) -> EncryptedSocket:
    """Return a client's end of a connection, before the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # `check_server` compares the certificate as a whole, which no authority's signature can replace.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = EncryptedSocket
    return _wrapped(connection, context, server_side=False)


def check_server(connection: EncryptedSocket, fingerprint: str, place: str) -> None:
    """Make the handshake on a client's end, and check that the server has the certificate with this fingerprint.

    Raises:
        TLSError: it has another one, or speaks no TLS.
        OSError: the connection broke, or nothing came for too long.
    """
    try:
        connection.do_handshake()
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError):
        raise  # the connection broke
    except ssl.SSLError as error:
        raise TLSError(
            f"expected a server that speaks TLS at {place}, got one that does not, or not as we do ({error}). "
            f"{_ANOTHER_SERVER}"
        ) from error
    found = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    if not secrets.compare_digest(found, fingerprint):
        raise TLSError(
            f"expected the server at {place} to show the certificate with the SHA-256 fingerprint {fingerprint}, got {found}; "
            f"nothing was sent to it. {_ANOTHER_SERVER}"
        )


def encrypted_server(place: str) -> TLSError:
    """Return the error of a client in plain text that met a server that speaks TLS."""
    return TLSError(f"expected a server in plain text at {place}, got one that speaks TLS. {_ANOTHER_SERVER}")


_ANOTHER_SERVER = (
    "Is another run's server listening there, or something between that ends connections? Each run hands its workers the "
    "fingerprint of its own certificate; give port=0, and an address that leads to the driver itself."
)


def _wrapped(connection: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> EncryptedSocket:
    wrapped = context.wrap_socket(connection, server_side=server_side, do_handshake_on_connect=False)
    assert isinstance(wrapped, EncryptedSocket)
    return wrapped
