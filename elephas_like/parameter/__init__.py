"""Elephas' import path `parameter`: servers (`server`), clients (`client`), factories of both (`factory`)."""

from elephas_like.parameter.client import BaseParameterClient, HttpClient, SocketClient
from elephas_like.parameter.server import BaseParameterServer, HttpServer, SocketServer

__all__ = [
    "BaseParameterClient",
    "BaseParameterServer",
    "HttpClient",
    "HttpServer",
    "SocketClient",
    "SocketServer",
]
