"""The tools that the tests of the command line work with. Their receiver is a book: a file of one line per effect.

What a call does is in its first argument, so that a test reads as a story: a *lost* account is credited, and the reply
gets lost; a *gone* one is not, and nobody says so; a *bad* one is refused by the receiver.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tollhouse import (
    Accepted,
    Answer,
    CallContext,
    RecordedCall,
    Rejected,
    approval,
    dedup,
    destructive,
    did_not_happen,
    external,
    happened,
    read,
    tool,
    unknown,
    write,
)

BOOK = "TOLLHOUSE_TEST_BOOK"


started, let_go = threading.Event(), threading.Event()
"""Of the tools that take long: one took effect; it may go on."""


class Credit(BaseModel):
    """What the receiver answers."""

    id: str
    amount_cents: int


def book() -> list[dict[str, Any]]:
    """Every effect so far, in order."""
    path = Path(os.environ[BOOK])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def enter(**effect: Any) -> None:
    """Take effect."""
    with Path(os.environ[BOOK]).open("a") as lines:
        lines.write(json.dumps(effect) + "\n")


def say(text: str) -> None:
    """Print, as users' tools do; it must not spoil an answer, and tests wait for it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def find_credit(record: RecordedCall) -> Answer:
    """Look into the book."""
    if record.arguments["account_id"] == "silent":
        return unknown("the book is closed today")
    for effect in book():
        if effect["key"] == record.key:
            return happened(Credit(id=effect["id"], amount_cents=effect["amount_cents"]), effect["id"])
    return did_not_happen("nothing in the book")


async def void_credit(result: Credit, ctx: CallContext) -> dict[str, str]:
    """Take a credit back."""
    enter(key=ctx.key, voids=result.id)
    return {"voided": result.id}


@tool(external(cost=0.25, absent_after_s=0), reconcile=find_credit, compensate=void_credit)
async def issue_credit(account_id: str, amount_cents: int, ctx: CallContext) -> Credit:
    """Credit an account."""
    if account_id == "bad":
        raise Rejected("no such account")
    if account_id != "gone":
        enter(key=ctx.key, id=f"cr_{len(book()) + 1}", amount_cents=amount_cents)
    if account_id in ("lost", "gone", "silent"):
        raise ConnectionResetError("connection reset by peer")
    return Credit(id=f"cr_{len(book())}", amount_cents=amount_cents)


@tool(write())
def send_letter(to: str) -> None:
    """Send a letter; nobody can look whether it arrived."""
    say("posting a letter")
    if to == "nobody":
        raise RuntimeError("the \x1b[31mletterbox\x1b[0m\n is on fire")


@tool(destructive(approval=approval(quorum=2, approvers=["ada", "bob", "eve"])))
def drop_table(name: str, rows: int = 0) -> int:
    """Drop a table for ever."""
    enter(dropped=name)
    say(f"dropping {name}")
    if name == "forever":
        let_go.wait()
    return rows


@tool(external(accepts=True, dedup=dedup.by_key(hours=24)))
def start_job(name: str) -> str:
    """Begin long work."""
    raise Accepted(f"job-{name}")


@tool(external(attempt_timeout_s=60))
def hang() -> str:
    """Take effect, and take long to say so."""
    enter(hangs=True)
    started.set()
    say("hanging")
    let_go.wait()
    return "done"


def unknown_price(_arguments: Any, _result: Any) -> float:
    """Bookkeeping that is broken."""
    raise LookupError("no price list")


@tool(write(cost=unknown_price))
def meter() -> str:
    """Do something that costs nobody knows what."""
    return "metered"


@tool(read())
def balance(account_id: str) -> int:
    """What an account holds."""
    return sum(effect.get("amount_cents", 0) for effect in book())


TOOLS = [issue_credit, send_letter, drop_table, start_job, hang, meter, balance]
PATH = str(Path(__file__))
