"""Ports that stay ours between a stop and a start; used by the servers and proxies that tests restart."""

from __future__ import annotations

import random
import socket


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port on which nothing listens at `host`.

    It lies below the range from which Linux and macOS take ports for outgoing connections, so no client can
    be given it while the server that owns it is down. Another server may still take it: callers that start
    one try again with another port. Raises OSError when 200 tries found none.
    """
    for _ in range(200):
        port = random.randrange(15_000, 32_000)
        if _is_free(host, port):
            return port
    raise OSError(f"no free port found on {host}")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
