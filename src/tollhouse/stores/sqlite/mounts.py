"""Which file system a path is on: an SQLite ledger on a network share would be neither locked nor durable."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

NETWORK = frozenset({
    "9p", "afs", "afpfs", "afp", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.afp", "fuse.beegfs", "fuse.ceph",
    "fuse.cephfs", "fuse.curlftpfs", "fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.nfs",
    "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs", "fuse.smbnetfs", "fuse.sshfs", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs3", "nfs4", "orangefs", "pvfs2", "smb2", "smb3", "smbfs", "webdav",
})  # fmt: skip
"""Types of file systems that reach their disk over a network."""

MEMORY = frozenset({"ramfs", "tmpfs"})
"""Types of file systems that keep files in the machine's memory."""

_OCTAL = re.compile(r"\\([0-7]{3})")
_MACOS_LINE = re.compile(r".* on (?P<point>/.*) \((?P<kind>[^,)]+)")


class Mount(NamedTuple):
    """A mounted file system: where, and of which type."""

    point: str
    kind: str


def file_system_of(path: Path, mounts: Sequence[Mount]) -> str | None:
    """The type of the file system that holds ``path`` (links followed); None when no mount is known to."""
    real = Path(path).resolve()
    holders = [mount for mount in mounts if real.is_relative_to(mount.point)]
    # Of two mounts on one point the later one covers the earlier.
    return max(enumerate(holders), key=lambda held: (len(held[1].point), held[0]))[1].kind if holders else None


def mounted() -> list[Mount]:
    """What is mounted on this machine; empty where that cannot be learned."""
    try:
        if sys.platform == "darwin":
            listed = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=True, timeout=10)
            return mounts_in_macos_listing(listed.stdout)
        return mounts_in_proc(Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, subprocess.SubprocessError):
        return []


def mounts_in_proc(text: str) -> list[Mount]:
    """Linux: ``device point type options 0 0``, odd characters in octal."""
    fields = [line.split(" ") for line in text.splitlines()]
    return [Mount(_OCTAL.sub(lambda m: chr(int(m[1], 8)), f[1]), f[2]) for f in fields if len(f) >= 3]


def mounts_in_macos_listing(text: str) -> list[Mount]:
    """macOS: ``device on /point (type, options)``."""
    return [Mount(found["point"], found["kind"]) for found in map(_MACOS_LINE.match, text.splitlines()) if found]
