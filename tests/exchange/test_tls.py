"""Encrypted connections: what crosses them, who is let in, and where the key is. Both transports, over real sockets."""

from __future__ import annotations

import os
import pickle
import re
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec
from small_world import LAYOUT, SIZES, Background, train_order, work

from elephas_like.exchange import server as server_module
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.connections import LINES
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.exchange.tls import Identity, TLSError, accepted, admits, check_server, identity, to_server
from elephas_like.exchange.wire import read

SERVERS = {"http": HttpExchangeServer, "socket": TcpExchangeServer}
TOKEN = "token-of-this-run"
Server = HttpExchangeServer | TcpExchangeServer


@pytest.fixture(params=["http", "socket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def own() -> Identity:
    return identity()


@dataclass
class Wire:
    """A program between client and server: it takes one connection after the other, forwards their bytes and keeps them.

    step, pause: the server's bytes go on in pieces of this size, with a pause in seconds after each.
    """

    address: tuple[str, int]
    step: int = 2**16
    pause: float = 0.0
    heard: bytearray = field(default_factory=bytearray)

    @contextmanager
    def open(self) -> Iterator[tuple[str, int]]:
        """The address to connect to."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepting = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            accepting.start()
            yield listener.getsockname()
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(20)

    def _accept(self, listener: socket.socket) -> None:
        threads = []
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                break
            server = socket.create_connection(self.address)
            for one, other, step, pause in ((client, server, 2**16, 0.0), (server, client, self.step, self.pause)):
                threads.append(threading.Thread(target=self._forward, args=(one, other, step, pause), daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(20)

    def _forward(self, one: socket.socket, other: socket.socket, step: int, pause: float) -> None:
        try:
            while data := one.recv(step):
                self.heard += data
                other.sendall(data)
                threading.Event().wait(pause)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def settings_of(kind: str, address: tuple[str, int], fingerprint: str | None) -> ClientSettings:
    return ClientSettings(kind, *address, TOKEN, SIZES, retries=2, fingerprint=fingerprint)  # type: ignore[arg-type]


def a_round(store: RoundStore, settings: ClientSettings) -> None:
    """One worker joins, answers one order, and is told to stop."""
    worker = Background(lambda: work(settings.connect(0, 100), 0))
    store.joined()
    assert [one.delta.tolist() for one in store.train(train_order())] == [[1.0, 2.0]]
    store.stop()
    assert worker.result() == 1


@pytest.mark.parametrize("encrypted", [True, False])
def test_the_token_does_not_cross_the_wire_in_plain_text(kind: str, own: Identity, encrypted: bool) -> None:
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=own if encrypted else None) as server:
        wire = Wire(server.address)
        with wire.open() as address:
            a_round(store, settings_of(kind, address, own.fingerprint if encrypted else None))
    plain = (TOKEN.encode() in wire.heard, LAYOUT.hash.encode() in wire.heard, b'"message"' in wire.heard)
    assert plain == (not encrypted,) * 3
    assert len(wire.heard) > 1000


def test_tls_1_3_is_what_both_ends_agree_on(kind: str, own: Identity) -> None:
    with SERVERS[kind](RoundStore(1, LAYOUT.hash), TOKEN, SIZES, "127.0.0.1", identity=own) as server:
        with closing(LINES[kind](*server.address, TOKEN, fingerprint=own.fingerprint)) as line:
            connection = line.open()
            assert isinstance(connection, ssl.SSLSocket)
            assert connection.version() == "TLSv1.3"


def test_a_client_of_tls_1_1_is_refused(own: Identity) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with HttpExchangeServer(RoundStore(1, LAYOUT.hash), TOKEN, SIZES, "127.0.0.1", identity=own) as server:
        with socket.create_connection(server.address, 20) as connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection)


@pytest.mark.fault(
    "A worker reaches a server with another certificate than its driver's",
    "`TLSError` with both fingerprints; nothing is sent to that server, not even the token",
    "the fit, before any row is written",
)
def test_a_server_with_another_certificate_is_refused_before_a_byte_is_sent(kind: str, own: Identity) -> None:
    other = identity()
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=other) as server:
        client = settings_of(kind, server.address, own.fingerprint).connect(0, 100)
        place = re.escape("127.0.0.1:" + str(server.address[1]))
        said = rf"the server at {place} to show .* fingerprint {own.fingerprint}, got {other.fingerprint}; nothing was sent"
        with pytest.raises(TLSError, match=f"{said}.*another run's server.*port=0"):
            client.announce("host-0")
        client.close()
        assert store._membership.pending == {}
        a_round(store, settings_of(kind, server.address, other.fingerprint))


@pytest.mark.fault(
    "One end speaks TLS and the other plain text", "`TLSError` at once, which says which end does", "the connection"
)
def test_a_client_in_plain_text_is_told_that_the_server_speaks_tls(kind: str, own: Identity) -> None:
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=own) as server:
        client = settings_of(kind, server.address, None).connect(0, 100)
        with pytest.raises(TLSError, match=r"a server in plain text at 127.0.0.1:\d+, got one that speaks TLS"):
            client.announce("host-0")
        client.close()
        assert store._membership.pending == {}
        a_round(store, settings_of(kind, server.address, own.fingerprint))


def test_a_client_with_tls_is_told_that_the_server_speaks_plain_text(kind: str, own: Identity) -> None:
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        client = settings_of(kind, server.address, own.fingerprint).connect(0, 100)
        with pytest.raises(TLSError, match=r"a server that speaks TLS at 127.0.0.1:\d+, got one that does not"):
            client.announce("host-0")
        client.close()
        assert store._membership.pending == {}
        a_round(store, settings_of(kind, server.address, None))


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "a byte", "a head"])
@pytest.mark.fault(
    "A stranger begins no TLS handshake, or does not end it",
    "its connection is closed after a few seconds; workers are served meanwhile",
    "nothing",
)
def test_a_stranger_that_ends_no_handshake_holds_nobody_up_and_is_closed(
    kind: str, own: Identity, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RoundStore(1, LAYOUT.hash)
    monkeypatch.setattr(server_module, "UNAUTHENTICATED_SECONDS", 3600.0)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=own) as server:
        with (
            socket.create_connection(server.address, 20) as patient,
            socket.create_connection(server.address, 20) as late,
        ):
            patient.sendall(begun)
            Background(lambda: a_round(store, settings_of(kind, server.address, own.fingerprint))).result()
            monkeypatch.setattr(server_module, "UNAUTHENTICATED_SECONDS", 0.0)
            with socket.create_connection(server.address, 20) as stranger:
                stranger.sendall(begun)
                assert stranger.recv(1) == b""
            patient.setblocking(False)
            late.setblocking(False)
            for connection in (patient, late):  # open all the time
                with pytest.raises(BlockingIOError):
                    connection.recv(1)


def test_a_record_that_comes_in_trickles_may_take_longer_than_the_bound(own: Identity) -> None:
    """The bound is on the time without a byte, and a record of TLS is readable when its last byte is there."""
    bound, pieces = 0.75, 40
    body = bytes(range(256)) * 32

    def serve(listener: socket.socket) -> None:
        with accepted(listener.accept()[0], own) as connection:
            assert admits(connection, 20)
            connection.sendall(body)
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = Background(lambda: serve(listener))
        wire = Wire(listener.getsockname(), step=len(body) // pieces, pause=1.5 * bound / pieces)
        with wire.open() as address, to_server(socket.create_connection(address)) as connection:
            connection.settimeout(bound)
            check_server(connection, own.fingerprint, "here")
            source = connection.makefile("rb")
            assert read(source, len(body)) == body
            connection.shutdown(socket.SHUT_RDWR)
            running.result()


def test_what_is_written_after_half_a_connection_was_ended_is_encrypted(own: Identity) -> None:
    """The server ends reading so while replies go out; an `ssl.SSLSocket` goes on in plain text."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = Wire(listener.getsockname())
        with wire.open() as address, to_server(socket.create_connection(address)) as client:
            shaking = Background(lambda: check_server(client, own.fingerprint, "here"))
            with accepted(listener.accept()[0], own) as connection:
                assert admits(connection, 20)
                shaking.result()
                connection.shutdown(socket.SHUT_RD)
                connection.sendall(b"a reply that was under way")
            assert client.recv(100) == b"a reply that was under way"
    assert b"under way" not in wire.heard


def test_an_identity_leaves_no_file_and_stays_in_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = [identity(), identity()]
    assert made[0].fingerprint != made[1].fingerprint
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(made[0])


def test_the_key_s_file_is_encrypted_and_its_owner_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, path: str, *others: object, **named: object) -> None:
        seen.append(
            (os.stat(path).st_mode & 0o777, os.stat(os.path.dirname(path)).st_mode & 0o777, Path(path).read_bytes())
        )
        load(context, path, *others, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    identity()
    ((file, folder, content),) = seen
    assert (file, folder) == (0o600, 0o700)
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in content
    assert b"BEGIN PRIVATE KEY" not in content


@dataclass
class Files:
    """A certificate and its key, as a user has them."""

    certificate: Path
    key: Path
    secret: list[bytes]
    fingerprint: str

    @property
    def given(self) -> tuple[str, str]:
        return str(self.certificate), str(self.key)


def files(folder: Path, name: str, days: int = 30, password: bytes | None = None) -> Files:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a host of another name")])
    begin, end = sorted([datetime.now(UTC) - timedelta(days=60), datetime.now(UTC) + timedelta(days=days)])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 7, begin, end)
    certificate = builder.sign(key, hashes.SHA256())
    locked = pem.NoEncryption() if password is None else pem.BestAvailableEncryption(password)
    made = Files(
        folder / f"{name}.crt",
        folder / f"{name}.key",
        [
            key.private_bytes(pem.Encoding.DER, pem.PrivateFormat.PKCS8, pem.NoEncryption()),
            key.private_numbers().private_value.to_bytes(32, "big"),
            b"PRIVATE KEY",
        ],
        certificate.fingerprint(hashes.SHA256()).hex(),
    )
    made.certificate.write_bytes(certificate.public_bytes(pem.Encoding.PEM))
    made.key.write_bytes(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, locked))
    return made


def test_the_user_s_own_files_are_used_and_the_key_does_not_travel(kind: str, tmp_path: Path) -> None:
    mine = files(tmp_path, "mine")
    found = identity(mine.given)
    assert found.fingerprint == mine.fingerprint
    store = RoundStore(1, LAYOUT.hash, waits=Waits())
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=found) as server:
        sent = pickle.dumps(settings_of(kind, server.address, found.fingerprint))
        assert not [secret for secret in mine.secret if secret in sent]
        a_round(store, pickle.loads(sent))  # noqa: S301


def test_files_that_cannot_serve_are_refused_with_their_names(tmp_path: Path) -> None:
    mine, other = files(tmp_path, "mine"), files(tmp_path, "other")
    expired, locked = files(tmp_path, "expired", days=-1), files(tmp_path, "locked", password=b"open")
    text = tmp_path / "notes.txt"
    text.write_text("nothing of the kind")
    for given, said in (
        (expired.given, r"expired.crt', .* is valid from .* to .* which is not now\. Renew it, or give tls=True"),
        ((mine.given[0], other.given[1]), r"mine.crt', .*other.key'\).*SSLError.*mismatch"),
        (locked.given, r"locked.key'\) must be .* a key? ?without a password|its key without a password"),
        ((str(text), mine.given[1]), r"notes.txt', .*in PEM format.*ValueError"),
        ((str(tmp_path / "none.crt"), mine.given[1]), r"none.crt', .*FileNotFoundError"),
    ):
        with pytest.raises(ValueError, match=said):
            identity(given)
