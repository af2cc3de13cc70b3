"""Compact JSON text, by encoders that are made once.

``json.JSONEncoder`` builds its C half anew for every text, which costs as much as a small text itself; a call writes
six of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder
from typing import Any

_c_make_encoder: Any = getattr(encoder, "c_make_encoder", None)


def compact_encoder(
    *,
    default: Callable[[Any], Any] | None = None,
    ensure_ascii: bool = True,
    allow_nan: bool = True,
    sort_keys: bool = False,
) -> Callable[[object], str]:
    """A function that writes what ``JSONEncoder(..., separators=(",", ":")).encode`` writes, and raises what it raises.

    What contains itself ends in :class:`RecursionError`.
    """
    whole = json.JSONEncoder(
        check_circular=False,
        default=default,
        ensure_ascii=ensure_ascii,
        allow_nan=allow_nan,
        sort_keys=sort_keys,
        separators=(",", ":"),
    )
    if _c_make_encoder is None:
        return whole.encode
    text_of = encoder.encode_basestring_ascii if ensure_ascii else encoder.encode_basestring
    chunks = _c_make_encoder(None, whole.default, text_of, None, ":", ",", sort_keys, False, allow_nan)
    return lambda tree: "".join(chunks(tree, 0))
