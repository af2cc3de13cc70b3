from tollhouse import destructive, tool


@tool(destructive())
def close_account(customer: str) -> str:
    """Close an account for ever."""
    return f"closed {customer}"
