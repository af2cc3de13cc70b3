import asyncio

from tollhouse import Tollhouse, happened


async def main():
    async with Tollhouse.open("sqlite:///tollhouse.db") as house:
        for doubt in await house.list(state="in_doubt"):
            print("in doubt:", doubt.key, doubt.tool, doubt.arguments)
        call = await house.resolve(
            "order-8:credit", happened("cr_2"), by="ada", reason="seen in the provider's dashboard"
        )
        print(call.key, "is now", call.state)


asyncio.run(main())
