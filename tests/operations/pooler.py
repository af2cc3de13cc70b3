"""PgBouncer for tests: the one of the machine, or Debian's package unpacked into a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tollhouse.testing.ports import free_port

PACKAGES = ("pgbouncer", "libc-ares2", "libevent-2.1-7")
POOL_SIZE = 3
"""Connections to the server: far fewer than a house has to the pooler."""

SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
ignore_startup_parameters =
logfile = {folder}/log
pidfile = {folder}/pid
"""


@pytest.fixture(scope="session")
def pgbouncer_program() -> Iterator[list[str]]:
    """The command that runs it. Skips where there is none and none can be fetched, saying so."""
    if found := shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        yield [found]
        return
    folder = Path(tempfile.mkdtemp(prefix="tollhouse-pgbouncer-"))
    try:
        _fetch(folder)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"PgBouncer is not installed, and Debian's package could not be fetched ({type(error).__name__})")
    else:
        libraries = ":".join(str(path) for path in (folder / "usr/lib").glob("*-linux-gnu"))
        yield ["env", f"LD_LIBRARY_PATH={libraries}", str(folder / "usr/sbin/pgbouncer")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(folder: Path) -> None:
    """Debian's packages, unpacked: nothing of the machine is changed."""
    folder.chmod(0o755)
    commands = [["apt-get", "update"]] if os.geteuid() == 0 else []
    for command in [*commands, ["apt-get", "download", *PACKAGES]]:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True, capture_output=True)


@pytest.fixture
def pooled_url(pgbouncer_program: list[str], postgres_url: str) -> Iterator[str]:
    """The URL of an empty database behind PgBouncer in transaction mode."""
    with running(pgbouncer_program, postgres_url) as port:
        parts = urlsplit(postgres_url)
        yield urlunsplit(parts._replace(netloc=f"{parts.username or 'postgres'}@127.0.0.1:{port}"))


@contextlib.contextmanager
def running(program: list[str], url: str) -> Iterator[int]:
    """A pooler before the server of ``url``; its port."""
    parts, port = urlsplit(url), free_port("127.0.0.1")
    folder = Path(tempfile.mkdtemp(prefix="tollhouse-pgbouncer-"))
    folder.chmod(0o777)
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        SETTINGS.format(
            host=parts.hostname,
            port=parts.port,
            user=parts.username or "postgres",
            listen=port,
            size=POOL_SIZE,
            folder=folder,
        )
    )
    as_account = ["-u", "nobody"] if os.geteuid() == 0 else []
    pooler = subprocess.Popen(
        [*program, "-q", *as_account, str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port, pooler)
        yield port
    finally:
        pooler.terminate()
        pooler.wait(10)
        shutil.rmtree(folder)


def _wait_for(port: int, pooler: subprocess.Popen[bytes]) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert pooler.poll() is None, "pgbouncer ended at once"
        time.sleep(0.02)
    raise AssertionError("pgbouncer does not listen")
