"""Elephas' import path for clients of its parameter servers."""

from elephas_like.compat.parameters import BaseParameterClient, HttpClient, SocketClient

__all__ = ["BaseParameterClient", "HttpClient", "SocketClient"]
