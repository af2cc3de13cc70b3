"""`python -m tollhouse.testing.receiver`: the receiver as a process.

It prints one line, `listening HOST:PORT`, when it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from pathlib import Path

from .book import Book
from .service import Service
from .wire import HEAD_BYTES_MAX

HOST = "127.0.0.1"


def main() -> None:
    """Serve until killed, interrupted or, if asked for, until standard input ends."""
    parser = argparse.ArgumentParser(
        prog="tollhouse.testing.receiver", description="A billing service that misbehaves on demand."
    )
    parser.add_argument("--book", type=Path, required=True, help="file of JSON lines; made if missing")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--port-file", type=Path, help="where to write the port, once listening")
    parser.add_argument("--until-stdin-ends", action="store_true", help="stop when the starting process ends")
    arguments = parser.parse_args()
    if arguments.until_stdin_ends:
        threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        asyncio.run(_serve(arguments.book, arguments.port, arguments.port_file))
    except KeyboardInterrupt:
        sys.exit(130)


async def _serve(path: Path, port: int, port_file: Path | None) -> None:
    service = Service(Book.load(path))
    server = await asyncio.start_server(service.serve, HOST, port, limit=HEAD_BYTES_MAX)
    port = server.sockets[0].getsockname()[1]
    if port_file is not None:
        # Renaming shows the whole number or nothing to whoever watches for the file.
        draft = port_file.with_name(port_file.name + ".draft")
        draft.write_text(f"{port}\n")
        draft.replace(port_file)
    sys.stdout.write(f"listening {HOST}:{port}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


def _exit_with_parent() -> None:
    # The pipe closes when the last process that holds its other end is gone, however it died.
    # Not through `sys.stdin`: its lock, held here, would stall every other way to exit.
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
