"""``tollhouse keys``: who may use the HTTP API, and for what. The server asks the same ledger."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from tollhouse.cli.failures import OK
from tollhouse.cli.ledger import existing, run
from tollhouse.cli.options import File, Json, Store, Tenant, Volatile
from tollhouse.cli.screen import Screen
from tollhouse.house.access import EXPIRES_MOST_S, KeyRing, Scope, is_current
from tollhouse.ledger.keys import DEFAULT_TENANT, check_tenant
from tollhouse.ledger.plain import moment
from tollhouse.ledger.run_record import AccessKey
from tollhouse.stores import open_store

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Make, list and revoke the keys that callers of the HTTP API show.\n\n"
    "A key belongs to one principal of one tenant. Only a digest of its secret is kept.",
)

DAY_S = 86_400

Scopes = Annotated[
    list[str],
    typer.Option(
        "--scope",
        metavar="SCOPE",
        help="What it allows; may be repeated: "
        + "; ".join(f"{scope.value} ({scope.sentence})" for scope in Scope)
        + ".",
        show_default=False,
    ),
]


@app.command("create")
def create(
    principal: Annotated[
        str,
        typer.Option(
            "--principal", metavar="NAME", help="Whose key it is: who asks, and who decides.", show_default=False
        ),
    ],
    scope: Scopes,
    expires_days: Annotated[
        float | None,
        typer.Option(
            "--expires-days",
            metavar="N",
            min=0,
            max=EXPIRES_MOST_S / DAY_S,
            help="After so many days it is no longer valid.",
        ),
    ] = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    volatile: Volatile = False,
    as_json: Json = False,
) -> int:
    """Make a key and show it once.

    Nobody can read it again, so keep it where secrets are kept. Nobody approves their own calls: give agents and
    approvers keys of different principals.
    """
    screen = Screen(as_json=as_json)

    async def make() -> tuple[AccessKey, str]:
        async with _ring(store, file, tenant, volatile) as ring:
            expires_s = None if expires_days is None else expires_days * DAY_S
            return await ring.create(principal, scope, expires_s=expires_s)

    key, token = run(make())
    if as_json:
        screen.document({**_as_json(key), "token": token})
        return OK
    screen.line("This is the only time that the key is shown:")
    screen.command(token)
    screen.pairs(_told(key))
    return OK


@app.command("list")
def list_keys(
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """List every key, newest first, those that have ended too."""
    screen = Screen(as_json=as_json)

    async def read() -> list[tuple[AccessKey, bool]]:
        async with _ring(store, file, tenant, volatile=True) as ring:
            now_us = await ring.now_us()
            return [(key, is_current(key, now_us)) for key in await ring.list()]

    keys = run(read())
    if as_json:
        screen.document({"keys": [{**_as_json(key), "valid": valid} for key, valid in keys]})
    elif not keys:
        screen.line("There are no keys: the server asks for none, and serves on loopback only.")
    else:
        headings = ("ID", "PRINCIPAL", "SCOPES", "VALID", "CREATED")
        screen.table(headings, [_row(key, valid) for key, valid in keys], dispensable=(4, 2))
    return OK


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the key.", show_default=False)],
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    volatile: Volatile = False,
    as_json: Json = False,
) -> int:
    """End a key for ever. Servers that are running notice within two seconds."""
    screen = Screen(as_json=as_json)

    async def end() -> AccessKey:
        async with _ring(store, file, tenant, volatile) as ring:
            return await ring.revoke(key_id)

    key = run(end())
    if as_json:
        screen.document(_as_json(key))
    else:
        screen.line(f"The key {key.id} of {key.principal} is revoked.")
    return OK


@contextlib.asynccontextmanager
async def _ring(store: str | None, file: str | None, tenant: str, volatile: bool) -> AsyncIterator[KeyRing]:
    opened = await open_store(await existing(store, file), volatile=volatile)
    try:
        yield KeyRing(opened, check_tenant(tenant))
    finally:
        await opened.close()


def _as_json(key: AccessKey) -> dict[str, Any]:
    """A key without the digest of its secret, which is nobody's business."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "principal": key.principal,
        "scopes": list(key.scopes),
        "created_at": moment(key.created_at_us),
        "expires_at": moment(key.expires_at_us),
        "revoked_at": moment(key.revoked_at_us),
    }


def _told(key: AccessKey) -> list[tuple[str, str]]:
    expires = moment(key.expires_at_us) or "never, until it is revoked"
    return [
        ("id", key.id),
        ("principal", key.principal),
        ("scopes", ", ".join(key.scopes)),
        ("expires", expires),
        ("send it as", "Authorization: Bearer <key>"),
    ]


def _row(key: AccessKey, valid: bool) -> list[tuple[str, str | None]]:
    ended = "revoked" if key.revoked_at_us is not None else "expired"
    state = ("yes", "green") if valid else (ended, "red")
    created = (moment(key.created_at_us) or "")[:10]
    return [(key.id, None), (key.principal, None), (", ".join(key.scopes), None), state, (created, "dim")]
