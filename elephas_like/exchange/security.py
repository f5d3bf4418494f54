"""The run's token: who has it may speak to the parameter server, nobody else learns anything."""

from __future__ import annotations

import hmac
import secrets


def new_token() -> str:
    """A fresh secret of 256 bits, safe to put in a header."""
    return secrets.token_urlsafe(32)


def same_token(given: str, expected: str) -> bool:
    """Whether two tokens are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))
