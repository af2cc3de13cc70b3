"""An e-mail, looked up by its Message-ID in the archive that gets a copy of everything."""

import mailbox
import os
import smtplib
from email.message import EmailMessage
from hashlib import sha256

from tollhouse import CallContext, did_not_happen, external, happened, tool


def message_id(idempotency_key: str) -> str:
    """One Message-ID for one call, whoever sends it and however often."""
    return f"<{sha256(idempotency_key.encode()).hexdigest()[:32]}@shop.example>"


def find_letter(idempotency_key):
    """Look for the Message-ID in the archive; absence counts only after silence, as always."""
    wanted = message_id(idempotency_key)
    for message in mailbox.Maildir(os.environ["MAIL_ARCHIVE"], create=False):
        if message["Message-ID"] == wanted:
            return happened(wanted, reference=wanted)
    return did_not_happen({"archive": "searched", "message_id": wanted})


def send_correction(record, ctx: CallContext):
    """A letter cannot be taken back; its compensation is another letter."""
    return _send(ctx, record.arguments["to"], "Correction", "Please disregard our last letter.")


@tool(external(departs="at_confirm"), reconcile=find_letter, compensate=send_correction)
def send_letter(to: str, subject: str, text: str, ctx: CallContext) -> str:
    """Send an e-mail, and return its Message-ID."""
    return _send(ctx, to, subject, text)


def _send(ctx: CallContext, to: str, subject: str, text: str) -> str:
    letter = EmailMessage()
    letter["From"], letter["To"], letter["Subject"] = "shop@shop.example", to, subject
    letter["Message-ID"] = message_id(ctx.idempotency_key)
    letter.set_content(text)
    host, port = os.environ["SMTP_ADDRESS"].split(":")
    with smtplib.SMTP(host, int(port), timeout=ctx.remaining_s) as server:
        ctx.confirm_sync()  # the last moment: from here on it may be out
        server.send_message(letter)
    return letter["Message-ID"]
