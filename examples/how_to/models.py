import asyncio
import os

from tollhouse.models.book import ModelBook
from tollhouse.models.port import ModelRequest, UserMessage
from tollhouse.models.provider import Endpoint

os.environ["LOCAL_KEY"] = "a key"


async def main():
    # <book>
    book = ModelBook(
        endpoints={
            "local": Endpoint("http://127.0.0.1:9/v1", api_key_env="LOCAL_KEY"),  # nobody listens there
            "claude": Endpoint("https://gateway.example", api_key_env="GATEWAY_KEY", api="anthropic"),
        },
        scripts={"spare": ["Hello, {{ input }}."]},
    )
    for name in ("local:llama3", "claude:claude-haiku-4-5", "scripted:spare", "lokal:llama3"):
        print(name, "|", book.known(name).why or "known")
    # </book>

    # <ask>
    request = ModelRequest("local:llama3", "Greet.", messages=(UserMessage("Ada"),), fallback=("scripted:spare",))
    reply = await book.ask(request)
    print(reply.model, "|", reply.text)
    for attempt in reply.attempts:
        print(attempt.model, "|", attempt.error_code, "| cost:", attempt.cost)
    await book.close()
    # </ask>


asyncio.run(main())
