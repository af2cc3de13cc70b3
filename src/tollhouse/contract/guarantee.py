"""The guarantee a tool really has, in one sentence: printed by ``tollhouse check``, stored on each call."""

from __future__ import annotations

from tollhouse.contract.checks import Completed
from tollhouse.contract.terms import Effect


def guarantee(effect: Effect, given: Completed, *, has_reconcile: bool) -> str:
    """What is promised, and what is not. Mirrors the guarantee table of the README."""
    if effect is Effect.READ:
        return f"runs up to {given.max_attempts} times on transient errors, again after a crash; never in doubt"
    if given.dedup.kind == "by_key":
        sent = f"sent up to {given.max_attempts} times with one key; one effect while the receiver keeps its word"
        sent += f" ({given.dedup.hours:g} h)"
    elif given.dedup.kind == "natural":
        sent = f"sent up to {given.max_attempts} times; repeating is harmless by the author's word"
    else:
        sent = "sent once; no second send without evidence or a named decision"
    settled = "a doubt is settled by its look-up or a person" if has_reconcile else "a doubt waits for a person"
    fence = "a late send is stopped by the fence" if given.departs == "at_confirm" else "a late send is not checked"
    return f"{sent}; {settled}; {fence}"


def cautions(effect: Effect, given: Completed, *, has_reconcile: bool) -> list[str]:
    """What an author should know about this contract; empty when there is nothing to say."""
    told = []
    if effect is not Effect.READ and given.absent_after_s == 0:
        told.append("absent_after_s is 0: a look-up's absence counts at once, though a late request may still arrive")
    if effect is Effect.DESTRUCTIVE and given.approval is None:
        told.append("destructive without approval: nobody is asked before it departs")
    if effect is not Effect.READ and not has_reconcile and not given.dedup.allows_resend:
        told.append("no reconcile hook and no dedup: every doubt waits for a person")
    if given.accepts and not has_reconcile:
        told.append("accepts long work but has no reconcile hook to poll it: only a callback or a person settles it")
    return told
