"""Elephas' import path for its parameter servers."""

from elephas_like.compat.parameter_server import BaseParameterServer, HttpServer, SocketServer

__all__ = ["BaseParameterServer", "HttpServer", "SocketServer"]
