"""What the agents of a help desk may do."""

from tollhouse import dedup, destructive, external, happened, read, tool, unknown

REFUNDS = {}


@tool(read())
def find_order(order: str) -> dict:
    """Look an order up."""
    return {"order": order, "cents": 2500, "state": "paid"}


async def find_refund(idempotency_key):
    return happened(REFUNDS[idempotency_key]) if idempotency_key in REFUNDS else unknown()


@tool(external(dedup=dedup.by_key(hours=24)), reconcile=find_refund)
def refund(order: str, cents: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool(destructive(), reconcile=find_refund)
def close_account(account: str) -> str:
    """Close an account for ever."""
    return f"closed {account}"
