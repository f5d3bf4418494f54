"""Sockets live here. Nothing that comes from the network is unpickled."""
