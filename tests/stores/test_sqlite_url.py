"""Which URLs name an SQLite ledger, and which ledgers are durable enough to open."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tollhouse.errors import StoreNotDurable, StoreURLInvalid
from tollhouse.stores import open_store
from tollhouse.stores.sqlite.connections import pragma
from tollhouse.stores.sqlite.mounts import Mount, file_system_of, mounts_in_macos_listing, mounts_in_proc
from tollhouse.stores.sqlite.target import parse, require_durable

from .sqlite_ledger import opened

PROC_MOUNTS = r"""
/dev/vda / ext4 rw,relatime 0 0
tmpfs /tmp tmpfs rw 0 0
server:/export /mnt/share nfs4 rw,vers=4.2 0 0
//nas/team /mnt/team\040files cifs rw 0 0
ada@host:/ /mnt/share/ada fuse.sshfs rw 0 0
/dev/vdb /mnt/share/local ext4 rw 0 0
""".strip()

MACOS_LISTING = """
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
map auto_home on /System/Volumes/Data/home (autofs, automounted, nobrowse)
//ada@nas._smb._tcp.local/team files on /Volumes/team files (smbfs, nodev, nosuid)
""".strip()


def test_relative_path_is_taken_from_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three slashes and a relative path name a file in the working directory of the moment."""
    monkeypatch.chdir(tmp_path)
    assert parse("sqlite:///ledgers/my%20ledger.db").path == tmp_path / "ledgers/my ledger.db"


def test_four_slashes_name_an_absolute_path() -> None:
    """The fourth slash is the path's own."""
    assert parse("sqlite:////var/lib/ledger.db").path == Path("/var/lib/ledger.db")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite://ledger.db",
        "sqlite:///x.db?synchronous=SOMETIMES",
        "sqlite:///x.db?max_page_count=0",
        "sqlite:///x.db?max_page_count=many",
        "sqlite:///x.db?mode=ro",
        "sqlite:///x%00.db",
        "mysql://host/db",
        "ledger.db",
        "",
    ],
)
async def test_url_that_names_no_ledger_is_refused(url: str) -> None:
    """A URL that is not understood whole opens nothing."""
    with pytest.raises(StoreURLInvalid) as refused:
        await open_store(url)
    assert refused.value.sent == "no"


async def test_password_in_a_refused_url_is_not_repeated() -> None:
    """An error never shows a secret."""
    with pytest.raises(StoreURLInvalid) as refused:
        await open_store("mysql://ada:swordfish@host/db")
    assert "swordfish" not in str(refused.value)


# case H04
async def test_ledger_in_memory_is_opened_only_as_volatile() -> None:
    """What is gone with its process is no ledger, unless that is accepted."""
    with pytest.raises(StoreNotDurable):
        await open_store("sqlite:///:memory:")
    store = await open_store("sqlite:///:memory:", volatile=True)
    assert await store.get("t1", "k") is None
    await store.close()


@pytest.mark.parametrize("level", ["OFF", "NORMAL", "normal"])
async def test_weaker_synchronous_is_opened_only_as_volatile(tmp_path: Path, level: str) -> None:
    """Without an fsync in each commit a power cut could undo a departure."""
    url = f"sqlite:///{tmp_path}/x.db?synchronous={level}"
    with pytest.raises(StoreNotDurable):
        await open_store(url)
    store = await open_store(url, volatile=True)
    await store.close()


async def test_every_connection_logs_ahead_and_syncs_fully(tmp_path: Path) -> None:
    """WAL and FULL are read back from the open connections: SQLite ignores what it cannot honour."""
    async with opened(tmp_path) as store:
        handles = {store._connections.writer, store._connections.reader, store._connections.scanner}
        assert len(handles) == 3
        for handle in handles:
            assert pragma(handle.connection, "journal_mode") == "wal"
            assert pragma(handle.connection, "synchronous") == 2


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/mnt/share/x.db", "nfs4"), ("/mnt/team files/deep/x.db", "cifs"), ("/mnt/share/ada/x.db", "fuse.sshfs")],
)
def test_ledger_on_a_network_file_system_is_refused(path: str, kind: str) -> None:
    """SQLite can neither lock nor share its log there; the error names the type and a way out."""
    with pytest.raises(StoreNotDurable, match=kind) as refused:
        require_durable(parse(f"sqlite:///{path}"), mounts_in_proc(PROC_MOUNTS))
    assert "PostgreSQL" in refused.value.remedy


@pytest.mark.parametrize("path", ["/srv/x.db", "/mnt/share/local/x.db", "/mnt/sharepoint/x.db"])
def test_ledger_on_a_local_disk_is_accepted(path: str) -> None:
    """The mount that is nearest to the file counts, and names that only begin alike do not."""
    require_durable(parse(f"sqlite:///{path}"), mounts_in_proc(PROC_MOUNTS))


def test_ledger_on_tmpfs_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It survives crashes of processes, and temporary folders often are one; but somebody should know."""
    with caplog.at_level(logging.WARNING):
        require_durable(parse("sqlite:////tmp/x.db"), mounts_in_proc(PROC_MOUNTS))
    assert "tmpfs" in caplog.text


def test_mounts_on_macos_are_read_with_their_odd_names() -> None:
    """There the listing of the mount command tells where and what."""
    mounts = mounts_in_macos_listing(MACOS_LISTING)
    assert file_system_of(Path("/Volumes/team files/x.db"), mounts) == "smbfs"
    assert file_system_of(Path("/opt/x.db"), mounts) == "apfs"


def test_later_mount_on_the_same_point_counts() -> None:
    """A file system mounted over another hides it."""
    assert file_system_of(Path("/x.db"), [Mount("/", "rootfs"), Mount("/", "ext4")]) == "ext4"
