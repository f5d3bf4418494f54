"""Elephas' import path for factories of servers and clients."""

from elephas_like.compat.parameter_server import ClientServerFactory, HttpFactory, SocketFactory

__all__ = ["ClientServerFactory", "HttpFactory", "SocketFactory"]
