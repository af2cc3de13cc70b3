"""Runs every check and shows the output of those that fail; `make check` calls it.

All checks run even after one has failed, so that one run shows everything there is to mend.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

CHECKS: list[tuple[str, list[str | Path]]] = [
    ("format", [BIN / "ruff", "format", "--check", "."]),
    ("lint", [BIN / "ruff", "check", "."]),
    ("types", [BIN / "mypy"]),
    ("import order", [BIN / "lint-imports", "--no-logo"]),
    ("sizes", [sys.executable, "tools/sizes.py"]),
    ("stray addresses and paths", [sys.executable, "tools/stray.py"]),
]
# The docs and their check come and go together.
if (ROOT / "tools" / "check_docs.py").exists():
    CHECKS.append(("docs", [sys.executable, "tools/check_docs.py"]))


def passes(name: str, command: list[str | Path]) -> bool:
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    verdict = "ok" if done.returncode == 0 else "FAILED"
    print(f"{name:<26} {verdict:<7} {time.monotonic() - started:5.1f} s", flush=True)
    if done.returncode != 0:
        print((done.stdout + done.stderr).rstrip() + "\n", flush=True)
    return done.returncode == 0


def main() -> int:
    verdicts = [passes(name, command) for name, command in CHECKS]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
