"""Who makes a request, and what they may do: asked before anything of the request is read.

Without keys the server is open, and therefore on loopback only: everybody there is the house's own principal. With keys
each request carries one as ``Authorization: Bearer <token>``; who asks and who decides is the principal of the key, and
never what a body says.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import NamedTuple, Protocol

from starlette.datastructures import Headers

from tollhouse.errors import NotAuthenticated, NotAuthorized
from tollhouse.house import Tollhouse
from tollhouse.house.access import KeyRing, Scope, check_current, opens, parts_of
from tollhouse.ledger.run_record import AccessKey

log = logging.getLogger("tollhouse.api")

REREAD_S = 2.0
"""How long a key, or that there is none, is remembered: a revocation and the first key take effect within this time."""

REMEMBERED_MOST = 1000


class Caller(NamedTuple):
    """Who makes a request. ``key_id`` None: nobody had to show a key."""

    principal: str
    scopes: frozenset[str]
    key_id: str | None = None

    def check(self, scope: Scope) -> None:
        """Raise :class:`NotAuthorized` unless this caller may do that."""
        if scope.value not in self.scopes and Scope.ADMIN.value not in self.scopes:
            raise NotAuthorized(f"This needs a key with the scope {scope.value}.")


class Access(Protocol):
    """How callers are known. ``open``: whether no key is asked for."""

    open: bool

    async def caller(self, headers: Headers) -> Caller:
        """Who this is. Raises :class:`NotAuthenticated`, or :class:`StoreUnavailable` where nobody can tell."""
        ...


class OpenAccess:
    """Everybody is the house's principal and may do everything; for loopback only."""

    open = True

    def __init__(self, principal: str) -> None:
        self._everybody = Caller(principal, frozenset({Scope.ADMIN.value}))

    async def caller(self, headers: Headers) -> Caller:
        """The same for each request."""
        return self._everybody


class KeyAccess:
    """Callers show a key of this tenant. Keys are remembered for :data:`REREAD_S`, unknown ids as well."""

    open = False

    def __init__(self, house: Tollhouse) -> None:
        self._keys, self._core = KeyRing(house.store, house.tenant), house._core
        self._remembered: OrderedDict[str, tuple[int, AccessKey | None]] = OrderedDict()

    async def caller(self, headers: Headers) -> Caller:
        """The principal of the key that the request shows."""
        key_id, secret = _shown(headers)
        key = await self._key(key_id)
        if not opens(key, secret) or key is None:
            raise NotAuthenticated("The key is not valid.")
        check_current(key, self._core.clock.now_us())
        return Caller(key.principal, frozenset(key.scopes), key.id)

    async def _key(self, key_id: str) -> AccessKey | None:
        now_us = self._core.local_us()
        read_us, key = self._remembered.get(key_id, (None, None))
        if read_us is not None and now_us - read_us < REREAD_S * 1_000_000:
            return key
        key = await self._keys.get(key_id)
        self._remembered[key_id] = (now_us, key)
        self._remembered.move_to_end(key_id)
        while len(self._remembered) > REMEMBERED_MOST:
            self._remembered.popitem(last=False)
        return key


class OpenUntilKeys(OpenAccess):
    """Open while this tenant never had a key. The first one closes it within :data:`REREAD_S`, in every process."""

    def __init__(self, house: Tollhouse) -> None:
        super().__init__(house.principal)
        self._keys, self._with_key = KeyRing(house.store, house.tenant), KeyAccess(house)
        self._local_us = house._core.local_us
        self._looked_us = self._local_us()

    async def caller(self, headers: Headers) -> Caller:
        """Everybody; once there is a key, whoever shows one."""
        if self.open:
            await self._look()
        return await (super().caller(headers) if self.open else self._with_key.caller(headers))

    async def _look(self) -> None:
        now_us = self._local_us()
        if now_us - self._looked_us < REREAD_S * 1_000_000:
            return
        self.open = not await self._keys.list()
        self._looked_us = now_us
        if not self.open:
            log.warning("access_closed: a key was made, so every caller has to show one from now on")


async def access_of(house: Tollhouse) -> Access:
    """Keys, where this tenant ever had any; otherwise open until then. Keys that ended do not open a server again."""
    keys = await KeyRing(house.store, house.tenant).list()
    return KeyAccess(house) if keys else OpenUntilKeys(house)


def _shown(headers: Headers) -> tuple[str, str]:
    """Id and secret of the token in the request. What was shown instead is never repeated."""
    given = headers.getlist("authorization")
    if not given:
        raise NotAuthenticated("The request shows no key.")
    scheme, _, token = given[0].partition(" ")
    found = parts_of(token.strip()) if scheme.lower() == "bearer" and len(given) == 1 else None
    if found is None:
        raise NotAuthenticated("What the request shows is no key.")
    return found
