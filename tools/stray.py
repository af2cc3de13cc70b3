"""Finds package registry addresses and paths of one machine in tracked files; `make check` calls it.

Whoever installs from here has a registry and a home of their own: a lock that names a host, or a file that
names somebody's folder, works on one machine only.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

STRAY = {
    "a registry address": re.compile(
        r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|deb\.debian\.org"
        r"|index[-_]url|find[-_]links|\"resolved\":\s*\"http"
    ),
    # The last alternative is this checkout's own folder, wherever it is.
    "a path of one machine": re.compile(
        rf"(?<![\w.~-])/(?:root|home|work|Users)/[\w.-]|{re.escape(str(ROOT))}(?:/|\b)"
    ),
}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def strays_in(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (UnicodeDecodeError, FileNotFoundError):
        # Binary, or deleted but not yet committed: neither can be read as text.
        return
    for number, line in enumerate(lines, start=1):
        for what, pattern in STRAY.items():
            if found := pattern.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {what}: {found.group()}"


def main() -> int:
    strays = [stray for path in tracked_files() for stray in strays_in(path)]
    print("\n".join(strays) or "no stray addresses or paths")
    return 1 if strays else 0


if __name__ == "__main__":
    sys.exit(main())
