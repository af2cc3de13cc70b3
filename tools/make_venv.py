"""Builds `.venv` from the lock; `make` calls it whenever its stamp is older than the lock or pyproject.toml.

Only the standard library is used, as this runs before anything is installed. A change of pyproject.toml alone
reinstalls the project and leaves the locked packages, which take the time, as they are.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements" / "lock.txt"
INPUTS = [LOCK, ROOT / "pyproject.toml", Path(__file__)]
STAMP = VENV / "ready.stamp"
INSTALLED = VENV / "lock.sha256"
OLDEST_PYTHON = (3, 11)


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def install_locked(python: Path) -> None:
    """Installs exactly the locked packages, unless this lock is the one already installed."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if INSTALLED.exists() and INSTALLED.read_text() == digest:
        return
    print("Installing the locked packages into .venv (about a minute, once) ...", flush=True)
    # Compiled below in parallel instead, which takes half as long as pip's own pass.
    run(python, "-m", "pip", "install", "-qq", "--no-compile", "--require-hashes", "-r", LOCK)
    INSTALLED.write_text(digest)


def install_project(python: Path) -> None:
    """Links the project itself; its build backend comes from the lock, so nothing else is fetched."""
    run(python, "-m", "pip", "install", "-qq", "--no-deps", "--no-build-isolation", "-e", ROOT)


def compile_bytecode(python: Path) -> None:
    """Start-up takes three to four times as long without byte code, and some machines never write it."""
    site_packages = next(VENV.glob("lib/python3.*/site-packages"))
    # A package may ship files for other Python versions or templates that are no Python: not an error here.
    command = [str(part) for part in (python, "-m", "compileall", "-q", "-j", "0", site_packages, ROOT / "src")]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)


def is_ready() -> bool:
    newest_input = max(path.stat().st_mtime for path in INPUTS)
    return STAMP.exists() and STAMP.stat().st_mtime > newest_input


def main() -> int:
    if sys.version_info < OLDEST_PYTHON:
        print(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=python3.12")
        return 2
    # Two `make` commands may start at once in one checkout: the second waits, then finds the work done.
    with (ROOT / "pyproject.toml").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if is_ready():
            return 0
        python = VENV / "bin" / "python"
        if not python.exists():
            venv.create(VENV, with_pip=True, symlinks=os.name != "nt")
        install_locked(python)
        install_project(python)
        compile_bytecode(python)
        STAMP.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
