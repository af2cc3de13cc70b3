import asyncio

from tollhouse import Tollhouse, destructive, read, tool
from tollhouse.house.running import open_runs
from tollhouse.models.book import ModelBook
from tollhouse.runs.agents import Agent
from tollhouse.runs.drivers.local import LocalDriver


# <agent>
@tool(read())
async def balance(account: str) -> int:
    """What an account has, in cents."""
    return 2500


@tool(destructive())
async def close_account(account: str) -> str:
    """Close an account for ever."""
    return f"closed {account}"


AGENT = Agent(
    name="desk",
    model="scripted:desk",  # or "anthropic:…", "openai:…"
    instructions="Close the account if it is empty; ask a person otherwise.",
    tools=("balance", "close_account"),
    questions=True,
)
# </agent>

# <script>
SCRIPT = [
    {"call": [{"tool": "balance", "arguments": {"account": "a1"}}]},
    {"call": [{"tool": "ask_person", "arguments": {"question": "Close a1 with {{ results.0 }} cents?"}}]},
    {"call": [{"tool": "close_account", "arguments": {"account": "a1"}}]},
    "The account is closed.",
]
# </script>


# <run>
async def main() -> None:
    models = ModelBook(scripts={"desk": SCRIPT})
    async with Tollhouse.open("sqlite:///desk.db", tools=[balance, close_account]) as house:
        runs = await open_runs(house, {AGENT.name: AGENT}, models)
        driver = LocalDriver(runs)

        run = await runs.start("desk", "Please close a1.", by="ada", key="ticket-17")
        await driver.settle()
        run = await runs.get(run.id)
        print(run.state, "-", run.waiting[0].text)

        await runs.answer(run.id, run.waiting[0].id, "Yes, she was told.", by="bob")
        await driver.settle()
        run = await runs.get(run.id)
        print(run.state)

        await house.approve(run.waiting[0].id, by="carol")
        await driver.settle()
        run = await runs.get(run.id)
        print(run.state, "-", run.output)


# </run>


asyncio.run(main())
