"""Keys to the HTTP API: made and revoked by ``tollhouse keys``, asked for by the server at every request.

A token is ``thk_<id>_<secret>``. The secret is 256 random bits, so that its plain SHA-256 is all that need be kept:
nobody guesses it, and nobody who reads the ledger can use what is there. A key belongs to one tenant and one principal.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Final, cast

from tollhouse.contract.terms import US
from tollhouse.errors import InvalidSetting, NotAuthenticated
from tollhouse.ledger.run_record import AccessKey, RunStore
from tollhouse.ledger.store import Store

PREFIX: Final = "thk"
NAME_LENGTH_MOST: Final = 200
EXPIRES_MOST_S: Final = 10 * 366 * 86_400.0

_TOKEN: Final = re.compile(rf"{PREFIX}_([0-9a-f]{{16}})_([A-Za-z0-9_-]{{43}})")
_NOBODYS_DIGEST: Final = hashlib.sha256(secrets.token_bytes(32)).hexdigest()


class Scope(StrEnum):
    """What a key allows."""

    CALLS_READ = "calls:read"
    CALLS_WRITE = "calls:write"
    CALLS_DECIDE = "calls:decide"
    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    ADMIN = "admin"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    Scope.CALLS_READ: "see tools, calls, what waits for approval, and costs",
    Scope.CALLS_WRITE: "call tools, have a doubt looked up, cancel calls",
    Scope.CALLS_DECIDE: "decide about calls: approve, deny, edit, resolve, retry, compensate, overturn, uphold",
    Scope.RUNS_READ: "see agents and runs, and follow them",
    Scope.RUNS_WRITE: "start, cancel, answer and rerun runs, and raise their limits",
    Scope.ADMIN: "everything",
}


class KeyRing:
    """The keys of one tenant, as the store has them."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store, self._tenant = cast(RunStore, store), tenant
        self._clock = store

    async def create(
        self, principal: str, scopes: Iterable[str], *, expires_s: float | None = None
    ) -> tuple[AccessKey, str]:
        """Make a key; returns it with its token, which nobody can ever read again. Durable on return.

        ``expires_s``: from now; None: never. Raises :class:`InvalidSetting`.
        """
        key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        _check_name(principal)
        if expires_s is not None and not 0 < expires_s <= EXPIRES_MOST_S:
            raise InvalidSetting(
                f"A key cannot expire in {expires_s:g} s.", remedy="Give more than 0 s, 10 years at most."
            )
        now_us = await self._clock.now_us()
        key = AccessKey(
            tenant=self._tenant,
            id=key_id,
            secret_digest=digest_of(secret),
            principal=principal,
            scopes=_scopes(scopes),
            created_at_us=now_us,
            expires_at_us=None if expires_s is None else now_us + round(expires_s * US),
        )
        await self._store.keep_access_key(key)
        return key, f"{PREFIX}_{key_id}_{secret}"

    async def list(self) -> list[AccessKey]:
        """Every key there ever was, newest first."""
        return await self._store.access_keys(self._tenant)

    async def revoke(self, key_id: str) -> AccessKey:
        """End a key for ever; one that was revoked before stays as it is. Durable on return.

        Raises :class:`InvalidSetting` where there is none of that id.
        """
        key = await self.get(key_id)
        if key is None:
            raise InvalidSetting(f"There is no key {key_id[:40]!a}.", remedy="`tollhouse keys list` shows every one.")
        if key.revoked_at_us is not None:
            return key
        revoked = replace(key, revoked_at_us=await self._clock.now_us())
        await self._store.keep_access_key(revoked)
        return revoked

    async def now_us(self) -> int:
        """The store's clock, by which keys expire."""
        return await self._clock.now_us()

    async def get(self, key_id: str) -> AccessKey | None:
        """The key of that id."""
        return await self._store.access_key(self._tenant, key_id)


def parts_of(token: str) -> tuple[str, str] | None:
    """Id and secret of what looks like a token; None for anything else."""
    found = _TOKEN.fullmatch(token)
    return None if found is None else (found[1], found[2])


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def opens(key: AccessKey | None, secret: str) -> bool:
    """Whether it is this key's secret. Takes as long for no key at all, and whichever character is wrong."""
    expected = _NOBODYS_DIGEST if key is None else key.secret_digest
    same = hmac.compare_digest(digest_of(secret), expected)
    return same and key is not None


def check_current(key: AccessKey, now_us: int) -> None:
    """Raise :class:`NotAuthenticated` for a key whose time is over. Only for who has proven to hold it."""
    if key.revoked_at_us is not None:
        raise NotAuthenticated("The key was revoked.")
    if key.expires_at_us is not None and key.expires_at_us <= now_us:
        raise NotAuthenticated("The key has expired.")


def is_current(key: AccessKey, now_us: int) -> bool:
    """Whether the key can be used at that time."""
    return key.revoked_at_us is None and (key.expires_at_us is None or now_us < key.expires_at_us)


def _check_name(principal: str) -> None:
    printable = principal.isprintable() and principal == principal.strip()
    if not principal or len(principal) > NAME_LENGTH_MOST or not printable:
        raise InvalidSetting(f"A key belongs to a principal: give a name of 1 to {NAME_LENGTH_MOST} characters.")


def _scopes(given: Iterable[str]) -> tuple[str, ...]:
    asked = list(dict.fromkeys(given))
    for name in asked:
        if name not in set(Scope):
            raise InvalidSetting(f"There is no scope {name[:40]!a}.", remedy=f"Known scopes: {', '.join(Scope)}.")
    if not asked:
        raise InvalidSetting("A key without a scope allows nothing.", remedy=f"Known scopes: {', '.join(Scope)}.")
    return tuple(scope.value for scope in Scope if scope in asked)
