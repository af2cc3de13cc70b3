import asyncio
import os

from shop_tools import refund, send_letter

from tollhouse import Tollhouse
from tollhouse.errors import InDoubt


async def main():
    store = os.environ.get("TOLLHOUSE_STORE", "sqlite:///tollhouse.db")
    async with Tollhouse.open(store, tools=[refund, send_letter], principal="agent-7", background=False) as house:
        for tool, arguments, key in (
            (refund, {"order": "7", "cents": 2500}, "order-7:refund"),
            (send_letter, {"to": "ada", "text": "Your refund is on its way."}, "order-7:letter"),
        ):
            try:
                await house.call(tool, arguments, key=key)
            except InDoubt as doubt:
                print(doubt.key, doubt.code)


asyncio.run(main())
