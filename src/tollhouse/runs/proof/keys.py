"""The signing key of a house: an Ed25519 key in a folder outside the database, made when it is first needed.

Whoever can write the database must not be able to sign for it, and whoever reads a proof needs the public half only.
The folder also holds the anchors (``proof.anchors``). Needs the extra ``server`` (cryptography), imported on use.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode

from tollhouse.errors import SigningKeyUnusable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HOME_ENV = "TOLLHOUSE_HOME"
PRIVATE, PUBLIC = "signing.key", "signing.pub"

_FILE = re.compile(r"sqlite:///(?P<path>[^?]+)")
_PLACES = ("host", "port", "database", "dbname", "schema")
"""Parameters of a URL that say which database, or which part of it."""


def home_of(store_url: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of a ledger's key and anchors; nothing is made.

    ``TOLLHOUSE_HOME`` where it is set; else ``keys`` beside the file of a SQLite ledger; else the user's state folder,
    ``~/.local/state/tollhouse`` (``XDG_STATE_HOME`` is respected). Raises :class:`SigningKeyUnusable` where there is
    none of these.
    """
    if told := environment.get(HOME_ENV):
        return Path(told)
    if (file := _file_of(store_url)) is not None:
        return file.absolute().parent / "keys"
    state = environment.get("XDG_STATE_HOME")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "tollhouse"
    except RuntimeError:
        raise SigningKeyUnusable(
            "There is no place for the signing key: the user of this process has no home.", remedy=f"Set {HOME_ENV}."
        ) from None


def place_of(store_url: str) -> str:
    """Which ledger it is, whoever opens it from wherever: its file, or server, name and schema of its database."""
    if (file := _file_of(store_url)) is not None:
        return str(file.resolve())
    location, _, query = store_url.partition("?")
    told = sorted((name, value) for name, value in parse_qsl(query) if name in _PLACES)
    return re.sub(r"(?<=://)[^/]*@", "", location) + (f"?{urlencode(told)}" if told else "")


def _file_of(store_url: str) -> Path | None:
    """The file of a SQLite ledger, spelt as the store reads it; None for any other."""
    file = _FILE.match(store_url)
    return None if file is None or file["path"] == ":memory:" else Path(unquote(file["path"]))


class Signer:
    """A private key at hand. ``key_id`` is the SHA-256 of the public key's 32 bytes, in hexadecimal."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_pem = _pem_of(private.public_key())
        self.key_id = key_id_of(private.public_key())

    def sign(self, message: bytes) -> bytes:
        """64 bytes; the same for the same message, whenever."""
        return self._private.sign(message)


def open_signer(home: Path) -> Signer:
    """The key in that folder, made there (folder 0700, key 0600) when there is none; durable on return.

    Processes that start at once get the same one. Raises :class:`SigningKeyUnusable` for a key that others may read,
    or that is none.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = home / PRIVATE
    try:
        if not path.exists():
            _make(home, Ed25519PrivateKey.generate())
        signer = Signer(_read(path))
        public = home / PUBLIC
        if not public.exists() or public.read_bytes() != signer.public_pem.encode():
            public.unlink(missing_ok=True)  # it belongs to a key that was moved away
            _write(public, signer.public_pem.encode(), 0o644)
    except OSError as error:
        raise SigningKeyUnusable(f"The signing key {path} cannot be used: {error.strerror}.") from error
    return signer


def public_key_of(pem: str) -> Ed25519PublicKey:
    """The public key in PEM text. Raises :class:`ValueError` for anything else."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("the key is no Ed25519 key")
    return key


def key_id_of(public: Ed25519PublicKey) -> str:
    """What names a key."""
    return sha256(public.public_bytes_raw()).hexdigest()


def _pem_of(public: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _make(home: Path, private: Ed25519PrivateKey) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(home / PRIVATE, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def _write(path: Path, text: bytes, mode: int) -> None:
    """A file that is there whole or not at all; the first of several writers wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where a folder can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise SigningKeyUnusable(f"The signing key {path} can be read by others.", remedy=f"Run: chmod 600 {path}")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise SigningKeyUnusable(f"{path} holds no private key that can be read.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningKeyUnusable(f"{path} holds a key of another kind than Ed25519.")
    return key
