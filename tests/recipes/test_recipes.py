"""Each recipe against real parts: one effect after a lost reply, settled by its look-up, undone by its compensation."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType

import httpx2
import pytest

from tests.recipes.conftest import MailServer
from tollhouse.errors import InDoubt
from tollhouse.testing import Proxy, Receiver
from tollhouse.testing.plugin import HouseMaker

Load = Callable[[str], ModuleType]
SOON = {"attempt_timeout_s": 1.0, "deadline_s": 5.0}
"""Lost replies are noticed soon."""
REASON = {"by": "ada", "reason": "asked for by the customer"}


def stripe(port: int) -> httpx2.Client:
    """The provider without anything between."""
    return httpx2.Client(base_url=f"http://127.0.0.1:{port}", auth=("sk_test_12345", ""), timeout=10)


def a_charge(client: httpx2.Client) -> str:
    """A customer with a card, charged 1000 cents."""
    card = {"card[number]": "4242424242424242", "card[exp_month]": "12", "card[exp_year]": "2040", "card[cvc]": "123"}
    token = client.post("/v1/tokens", data=card).json()["id"]
    customer = client.post("/v1/customers", data={"source": token, "email": "a@example.com"}).json()["id"]
    body = {"amount": "1000", "currency": "usd", "customer": customer}
    charged: str = client.post("/v1/charges", data=body).json()["id"]
    return charged


async def test_card_refund(recipe: Load, house: HouseMaker, stripe_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider ignores keys, so a second request would be a second refund: there is one, and a charge undoes it."""
    with Proxy("127.0.0.1", stripe_port) as slow, stripe(stripe_port) as client:
        monkeypatch.setenv("STRIPE_URL", f"http://127.0.0.1:{slow.port}")
        refund = recipe("card_refund").refund
        charge = a_charge(client)
        async with house(refund, **SOON) as opened:
            slow.set_delay(to_client_ms=3000)
            with pytest.raises(InDoubt):
                await opened.call(refund, {"charge": charge, "cents": 300}, key="order-1:refund")
            slow.cut()
            slow.set_delay(to_client_ms=0)
            record = await opened.reconcile("order-1:refund")
            assert record.state == "succeeded"
            assert (await opened.call(refund, {"charge": charge, "cents": 300}, key="order-1:refund")).replayed
            charges_before = client.get("/v1/charges").json()["total_count"]
            await opened.compensate("order-1:refund", **REASON)
        refunds = client.get("/v1/refunds", params={"charge": charge}).json()["data"]
        assert [r["amount"] for r in refunds if r["metadata"]["key"] == record.idempotency_key] == [300]
        assert client.get("/v1/charges").json()["total_count"] == charges_before + 1


async def test_card_refund_is_found_among_many(recipe: Load, stripe_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refund beyond the provider's first page is found, and absence is said after the last page only."""
    monkeypatch.setenv("STRIPE_URL", f"http://127.0.0.1:{stripe_port}")
    find_refund = recipe("card_refund").find_refund
    with stripe(stripe_port) as client:
        charge = a_charge(client)
        for number in range(230):
            body = {"charge": charge, "amount": "1", "metadata[key]": f"key-{number}"}
            assert client.post("/v1/refunds", data=body).is_success
    assert (await find_refund(charge, "key-115")).finding == "happened"
    assert (await find_refund(charge, "another")).finding == "did_not_happen"


async def test_email(recipe: Load, house: HouseMaker, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The letter is in the archive once, found by its Message-ID, and corrected by a letter of its own."""
    monkeypatch.setenv("SMTP_ADDRESS", mail_server.address)
    monkeypatch.setenv("MAIL_ARCHIVE", str(mail_server.archive))
    send_letter = recipe("email_letter").send_letter
    letter = {"to": "ann@example.com", "subject": "Your order", "text": "It is on its way."}
    async with house(send_letter, **SOON) as opened:
        mail_server.forget_replies = 1
        with pytest.raises(InDoubt):
            await opened.call(send_letter, letter, key="order-2:letter")
        assert (await opened.reconcile("order-2:letter")).state == "succeeded"
        assert mail_server.letters == ["Your order"]
        await opened.compensate("order-2:letter", **REASON)
    assert mail_server.letters == ["Correction", "Your order"]


async def test_sql_row(recipe: Load, house: HouseMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose success was not heard is sent again under its key: one row; the undoing is a row of its own."""
    module = recipe("sql_row")
    monkeypatch.setenv("SHOP_DB", str(tmp_path / "shop.db"))
    with closing(module.connect()) as shop:
        shop.executescript(module.SCHEMA)
    monkeypatch.setattr(module, "connect", lambda: sqlite3.connect(tmp_path / "shop.db", factory=_DeafOnce))
    _DeafOnce.deaf = True
    async with house(module.credit, **SOON) as opened:
        outcome = await opened.call(module.credit, {"account": "a1", "cents": 500}, key="order-3:credit")
        assert (outcome.value, outcome.attempts) == (500, 2)
        assert (await opened.reconcile("order-3:credit")).state == "succeeded"
        house.clock.advance(61)  # an undoing waits until no late request can arrive
        await opened.compensate("order-3:credit", **REASON)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert shop.execute("SELECT cents FROM credits ORDER BY rowid").fetchall() == [(500,), (-500,)]


class _DeafOnce(sqlite3.Connection):
    """A connection whose next commit is made, and reported as a failure."""

    deaf = False

    def commit(self) -> None:
        """Commit; then forget to say so, once."""
        super().commit()
        if type(self).deaf:
            type(self).deaf = False
            raise sqlite3.OperationalError("disk I/O error")


async def test_ticket(recipe: Load, house: HouseMaker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One ticket after a lost reply, found by our reference, closed by the undoing."""
    monkeypatch.setenv("TICKETS_URL", receiver.url)
    open_ticket = recipe("ticket").open_ticket
    async with house(open_ticket, **SOON) as opened:
        receiver.fault("reset_after_effect", collection="tickets")
        with pytest.raises(InDoubt):
            await opened.call(open_ticket, {"title": "Broken lamp"}, key="case-4:ticket")
        record = await opened.reconcile("case-4:ticket")
        assert (record.state, record.result) == ("succeeded", receiver.effects("tickets")[0].id)
        await opened.compensate("case-4:ticket", **REASON)
    assert len(receiver.effects("tickets")) == 1
    assert receiver.effects("closures")[0].body["ticket"] == record.result


async def test_ticket_of_somebody_else_is_no_evidence(recipe: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ticket system that ignores what it is asked to search by tells nothing about ours."""
    all_tickets = json.dumps([{"id": "t1", "body": {"title": "Broken lamp", "reference": "default:another"}}]).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(all_tickets))
        writer.write(all_tickets)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        monkeypatch.setenv("TICKETS_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert (await recipe("ticket").find_ticket("default:ours")).finding == "unknown"


async def test_file_upload(recipe: Load, house: HouseMaker, s3_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost reply is repaired by writing the same object again; the undoing deletes it."""
    with Proxy("127.0.0.1", s3_port) as slow:
        monkeypatch.setenv("S3_URL", f"http://127.0.0.1:{slow.port}")
        module = recipe("file_upload")
        async with house(module.upload, **SOON) as opened:
            slow.set_delay(to_client_ms=1500)
            with pytest.raises(InDoubt):
                await opened.call(module.upload, {"name": "a.txt", "text": "hello"}, key="file-5", max_attempts=1)
            slow.cut()
            slow.set_delay(to_client_ms=0)
            record = await opened.reconcile("file-5")
            assert record.state == "succeeded"
            await opened.compensate("file-5", **REASON)
            assert module.find_upload("a.txt", "hello").finding == "did_not_happen"


async def test_file_of_another_upload_is_no_evidence(
    recipe: Load, house: HouseMaker, s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object under the same name with other bytes does not show that ours were written."""
    monkeypatch.setenv("S3_URL", f"http://127.0.0.1:{s3_port}")
    module = recipe("file_upload")
    async with house(module.upload) as opened:
        await opened.call(module.upload, {"name": "b.txt", "text": "of yesterday"}, key="file-6")
    assert module.find_upload("b.txt", "of yesterday").finding == "happened"
    assert module.find_upload("b.txt", "of today").finding == "unknown"


async def test_webhook(recipe: Load, house: HouseMaker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted work is settled by the receiver's callback, or by asking about the job; never by absence."""
    monkeypatch.setenv("EXPORTS_URL", receiver.url)
    module = recipe("webhook")
    async with house(module.export, **SOON) as opened:
        outcome = await opened.call(module.export, {"dataset": "orders"}, key="export-6")
        assert outcome.state == "accepted"
        await module.on_callback(opened, "export-6", _done(outcome.reference))
        assert (await opened.get("export-6")).result == "s3://shop/orders.csv"
        other = await opened.call(module.export, {"dataset": "refunds"}, key="export-7")
        assert (await opened.reconcile("export-7")).state == "accepted"
        receiver.finish_job(str(other.reference), "failed")
        house.clock.advance(61)
        assert (await opened.reconcile("export-7")).state == "failed"
        await opened.compensate("export-6", **REASON)
    assert len(receiver.effects("jobs")) == 2
    assert len(receiver.effects("deletions")) == 1


def _done(reference: str | None) -> dict[str, str | None]:
    return {"id": reference, "status": "done", "result": "s3://shop/orders.csv"}


async def test_webhook_that_tells_of_a_failure(
    recipe: Load, house: HouseMaker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback about a failed job settles the call as failed; a job whose name was lost is not asked for."""
    monkeypatch.setenv("EXPORTS_URL", receiver.url)
    module = recipe("webhook")
    async with house(module.export, **SOON) as opened:
        outcome = await opened.call(module.export, {"dataset": "orders"}, key="export-8")
        house.clock.advance(61)
        await module.on_callback(opened, "export-8", {"id": outcome.reference, "status": "failed"})
        assert (await opened.get("export-8")).state == "failed"
        receiver.fault("reset_after_effect", collection="jobs")
        with pytest.raises(InDoubt):
            await opened.call(module.export, {"dataset": "orders"}, key="export-9")
        assert (await opened.reconcile("export-9")).state == "in_doubt"
    assert [request.path for request in receiver.requests() if request.method == "GET"] == []


def test_every_recipe_is_tested() -> None:
    """A recipe without a test is no recipe."""
    from tests.recipes.conftest import RECIPES

    names = {path.stem for path in RECIPES.glob("*.py")}
    assert names == {"card_refund", "email_letter", "sql_row", "ticket", "file_upload", "webhook"}
