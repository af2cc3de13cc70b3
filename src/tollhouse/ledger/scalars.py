"""How each indivisible value beyond JSON's own is written and read: one row of :data:`SCALARS` per type.

Only ``codec`` uses it. A row is the single place where a type's encoding is decided; the marker of its lossless form
is its type's name. Rows may be added, never changed: results kept years ago are read by them.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

Converter = Callable[[Any], Any]


class Scalar(NamedTuple):
    """One type's encoding.

    ``argument`` gives what JSON says of a value, and None stands for a type that arguments may not hold. It raises
    ValueError, worded as a phrase, for a value that has no such form. ``write`` gives the payload of the lossless
    form, a JSON tree, and ``read`` the value again.
    """

    kind: type
    argument: Converter | None
    write: Converter
    read: Converter

    @property
    def marker(self) -> str:
        return f"${self.kind.__name__.lower()}"


def _base64(value: bytes | bytearray) -> str:
    return b64encode(value).decode("ascii")


def _marked_bytes(value: bytes | bytearray) -> dict[str, str]:
    return {"$bytes": _base64(value)}


def _read_bytes(payload: str) -> bytes:
    return b64decode(payload, validate=True)


def _finite_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"is Decimal('{value}'), which is not a JSON number")
    return str(value)


def _time_argument(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise ValueError("is a time in a zone whose offset depends on the day, which ISO 8601 cannot say")
    return value.isoformat()


def _write_moment(value: datetime | time) -> str | list[Any]:
    """ISO 8601 alone where that says all; otherwise with the zone's name and the fold beside it."""
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    text = value.isoformat()
    return [text, zone, value.fold] if zone or value.fold else text


def _read_moment(moment: Any, zone: str | None, fold: int) -> Any:
    """The recorded offset wins where the zone is unknown here or its rules have changed since."""
    if zone is None:
        return moment.replace(fold=fold)
    try:
        placed = moment.replace(tzinfo=ZoneInfo(zone), fold=fold)
    except (KeyError, ValueError, OSError):
        return moment
    return placed if placed.utcoffset() == moment.utcoffset() else moment


def _read_datetime(payload: str | list[Any]) -> datetime:
    if isinstance(payload, str):
        return datetime.fromisoformat(payload)
    text, zone, fold = payload
    placed: datetime = _read_moment(datetime.fromisoformat(text), zone, fold)
    return placed


def _read_time(payload: str | list[Any]) -> time:
    if isinstance(payload, str):
        return time.fromisoformat(payload)
    text, zone, fold = payload
    placed: time = _read_moment(time.fromisoformat(text), zone, fold)
    return placed


def _write_duration(value: timedelta) -> str:
    """ISO 8601 in whole days and seconds, so that every microsecond of the full range is kept."""
    sign, size = ("-", abs(value)) if value.days < 0 else ("", value)
    fraction = f".{size.microseconds:06d}" if size.microseconds else ""
    return f"{sign}P{size.days}DT{size.seconds}{fraction}S"


_DURATION: Final = re.compile(r"(-?)P(\d+)DT(\d+)(?:\.(\d{6}))?S")


def _read_duration(payload: str) -> timedelta:
    match = _DURATION.fullmatch(payload)
    if match is None:
        raise ValueError("not a duration")
    sign, days, seconds, microseconds = match.groups()
    size = timedelta(int(days), int(seconds), int(microseconds or 0))
    return -size if sign else size


def _write_complex(value: complex) -> list[str]:
    return [repr(value.real), repr(value.imag)]


def _read_complex(payload: list[str]) -> complex:
    return complex(float(payload[0]), float(payload[1]))


def _write_range(value: range) -> list[int]:
    return [value.start, value.stop, value.step]


def _text(kind: type, read: Converter | None = None) -> Scalar:
    """The row of a type whose ``str`` says all, in arguments and results."""
    return Scalar(kind, str, str, read or kind)


SCALARS: Final = (
    Scalar(bytes, _marked_bytes, _base64, _read_bytes),
    Scalar(bytearray, _marked_bytes, _base64, lambda payload: bytearray(_read_bytes(payload))),
    Scalar(complex, None, _write_complex, _read_complex),
    Scalar(range, None, _write_range, lambda payload: range(*payload)),
    Scalar(Decimal, _finite_decimal, str, Decimal),
    Scalar(datetime, datetime.isoformat, _write_moment, _read_datetime),
    Scalar(date, date.isoformat, date.isoformat, date.fromisoformat),
    Scalar(time, _time_argument, _write_moment, _read_time),
    Scalar(timedelta, _write_duration, _write_duration, _read_duration),
    _text(UUID),
    _text(Path),
    _text(PurePosixPath),
    _text(PureWindowsPath),
    _text(IPv4Address),
    _text(IPv4Interface),
    _text(IPv4Network),
    _text(IPv6Address),
    _text(IPv6Interface),
    _text(IPv6Network),
)
"""A subclass is looked for in this order, so ``datetime`` stands before ``date`` and ``Path`` before its bases."""
