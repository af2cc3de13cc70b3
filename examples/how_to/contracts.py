"""Four tools of a shop, each declared as what it is."""

from tollhouse import CallContext, approval, dedup, destructive, external, read, tool, write


# <read>
@tool(read())
async def balance(account: str) -> int:
    """The balance of an account, in cents."""
    return 0


# </read>


# <write>
@tool(write(dedup=dedup.natural, attempt_timeout_s=5))
async def set_price(product: str, cents: int) -> None:
    """Set the price of a product."""


# </write>


# <external>
@tool(external(departs="at_confirm", rejects=[402, 422], attempt_timeout_s=10))
async def charge(account: str, cents: int, ctx: CallContext) -> str:
    """Charge an account, and return the charge's id."""
    response = await ctx.http.post("https://pay.example/charges", json={"account": account, "cents": cents})
    return response.raise_for_status().json()["id"]


# </external>


# <destructive>
@tool(destructive(approval=approval(quorum=2, expires_s=3600)))
async def close_account(account: str, ctx: CallContext) -> None:
    """Close an account for good."""


# </destructive>
