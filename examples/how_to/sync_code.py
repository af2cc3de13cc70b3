import time

from tollhouse import CallContext, Tollhouse, external, tool


@tool(external(departs="at_confirm"))
def print_label(order: str, ctx: CallContext) -> str:
    """Print a shipping label; a plain function, which runs in a thread."""
    label = f"label for {order}"
    ctx.confirm_sync()  # the last check: from here on something may leave
    time.sleep(0.05)  # stands for the printer's own library
    return label


with Tollhouse.open_sync("sqlite:///tollhouse.db", tools=[print_label]) as house:
    outcome = house.call(print_label, {"order": "7"}, key="order-7:label")
    print(outcome.state, outcome.value)
    print([call.key for call in house.list()])
