"""The promises a tool can break, as a table: what is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise. ``broken``: the sentence a failing tool is told; ``remedy``: what mends it."""

    broken: str
    remedy: str


BREACHES: dict[str, Promise] = {
    "does_not_work": Promise(
        "It fails although the receiver behaves well.",
        "Check the arguments given to the test, the URL the tool uses, and its result type.",
    ),
    "key_not_forwarded": Promise(
        "It declares dedup.by_key, but its requests do not carry the idempotency key.",
        "Use ctx.http, or send ctx.idempotency_key (or ctx.subkey(name)) in the header the receiver reads.",
    ),
    "body_changes": Promise(
        "It declares dedup.by_key, but sent again with the same key its request is another.",
        "Make the request of the arguments alone: no times, random ids or counters; receivers refuse another body.",
    ),
    "read_writes": Promise(
        "It declares read(), but sends requests that may change something; it would be sent again at any time.",
        "Declare write() or external(). (To the receiver here only GET, HEAD and OPTIONS are reads.)",
    ),
    "own_retries": Promise(
        "It sends more than once in one attempt: something underneath retries by itself.",
        "Turn retries off in the client or SDK; retries have one owner, max_attempts of the contract.",
    ),
    "wrong_rejection": Promise(
        "It says that the receiver rejected the call, although the call took effect.",
        "Name only answers in rejects= (and raise Rejected only for those) by which the receiver says it did nothing.",
    ),
    "wrong_not_sent": Promise(
        "It says that nothing was sent, although the call took effect.",
        "Raise NotSent only before the first byte; leave network errors as they are.",
    ),
    "swallowed_error": Promise(
        "It returns as if it had worked, although the receiver refused and nothing took effect.",
        "Let errors out: call raise_for_status() and check what came back.",
    ),
    "followed_redirect": Promise(
        "It follows a redirect with a request that may change something.",
        "Do not follow redirects for anything but reads; a second place is a second send.",
    ),
    "dedup_untrue": Promise(
        "Sent again with the same key, it took effect twice.",
        "Declare dedup.none, or make the receiver see one key for all sends of a call.",
    ),
    "sends_before_confirm": Promise(
        "It declares departs='at_confirm', but sends before the check has passed.",
        "Send through ctx.http, or call ctx.confirm() directly before the send.",
    ),
    "mutates_arguments": Promise(
        "It changes the arguments it is given.",
        "Copy what has to change: a second attempt must send the same bytes.",
    ),
    "hook_writes": Promise(
        "Its reconcile hook sends requests that may change something.",
        "A look-up only reads: use GET, or a query that has no effect.",
    ),
    "hook_denies_effect": Promise(
        "Its reconcile hook says that the call did not happen, although it did.",
        "Look up by the idempotency key or by something the call itself wrote at the receiver.",
    ),
    "hook_claims_effect": Promise(
        "Its reconcile hook says that the call happened, although it did not.",
        "Answer happened() only for something at the receiver that this very call wrote; else the effect is lost.",
    ),
    "hook_trusts_refusal": Promise(
        "Its reconcile hook takes a refused or failed look-up for proof that the call did not happen.",
        "Answer unknown(), or let the error out, unless the receiver really answered the question.",
    ),
    "compensation_repeats": Promise(
        "Its compensation, carried out twice with one key, undoes twice.",
        "Send the key of the compensating call, or undo in a way that is harmless to repeat.",
    ),
}


@dataclass(frozen=True, slots=True)
class Breach:
    """One promise broken in one scenario. ``seen``: what was observed, in words."""

    code: str
    scenario: str
    seen: str

    @property
    def sentence(self) -> str:
        """What is wrong, in words."""
        return BREACHES[self.code].broken

    @property
    def remedy(self) -> str:
        """What mends it."""
        return BREACHES[self.code].remedy
