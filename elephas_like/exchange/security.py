"""The run's token, which authenticates connections to the parameter server."""

from __future__ import annotations

import hmac
import secrets


def new_token() -> str:
    """Return a new secret of 256 bits, safe to put in a header."""
    return secrets.token_urlsafe(32)


def same_token(given: str, expected: str) -> bool:
    """Whether two tokens are equal, compared in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))
