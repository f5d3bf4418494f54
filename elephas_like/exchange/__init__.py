"""Floor 1: sockets live here. Nothing that comes from the network is unpickled."""
