"""Which engine a store's URL names, and how to show the URL without its password."""

from __future__ import annotations

import re
from typing import Literal

from tollhouse.errors import StoreURLInvalid

Engine = Literal["sqlite", "postgresql"]

_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/]*@")
_PASSWORD_PARAMETER = re.compile(r"(?<=[?&])password=[^&]*")


def engine_of(url: str) -> Engine:
    """The engine that ``url`` names. Raises :class:`~tollhouse.errors.StoreURLInvalid`, without showing a password."""
    if url.startswith("sqlite://"):
        return "sqlite"
    if url.startswith("postgresql://"):
        return "postgresql"
    scheme, separator, _ = url.partition("://")
    what = f"the scheme {scheme[:40]!r}" if separator else "no scheme"
    raise StoreURLInvalid(f"The store's URL has {what}; stores are sqlite:// and postgresql:// URLs.")


def without_password(url: str) -> str:
    """The URL as it may be shown and logged."""
    return _PASSWORD_PARAMETER.sub("password=***", _PASSWORD.sub(r"\1:***@", url))
