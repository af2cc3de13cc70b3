"""The billing service itself: collections that take effects, look-ups, long work, and faults on demand.

`/v1/...` is what a tool calls: it is recorded, the moment a request has arrived, and can misbehave. All else
steers and reads the service, is never recorded and never misbehaves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from .book import JOB_STATES, Book, Effect, Job, Mode, SeenRequest, digest
from .faults import Fault, Planned
from .misbehaviour import Hangup, Misbehaviour
from .wire import BadRequest, Reply, Request, hard_reset, read_request, write_reply

JOBS: Final = "jobs"


class Service:
    """One receiver over one book; every method runs on the event loop that serves it."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.faults = Misbehaviour()
        self._changed = asyncio.Event()
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until either side ends it."""
        self._connections += 1
        try:
            await self._converse(reader, writer, self._connections)
        except Hangup as hangup:
            if hangup.reset:
                hard_reset(writer)
        except ConnectionError:
            pass  # the sender left; what took effect stays in the book
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        again = True
        while again:
            try:
                request = await read_request(reader, writer)
            except BadRequest as error:
                await write_reply(writer, Reply.json(400, {"error": str(error)}))
                return
            if request is None:
                return
            reply = await self._answer(request, connection)
            again = await write_reply(writer, reply) and request.keep_alive

    async def _answer(self, request: Request, connection: int) -> Reply:
        match request.path.strip("/").split("/"):
            case ["v1", collection, *rest] if collection:
                return await self._public(request, connection, collection, rest)
            case parts:
                return await self._control(request, parts)

    # What tools call.

    async def _public(self, request: Request, connection: int, collection: str, rest: list[str]) -> Reply:
        self._note(request, connection, collection)
        if not request.complete:
            raise Hangup(reset=False)
        planned = self.faults.plan.take(request.method, collection, request.key)
        return await self.faults.around(planned, lambda: self._well(request, collection, rest))

    def _note(self, request: Request, connection: int, collection: str) -> None:
        self.book.add_request(
            method=request.method,
            path=request.path,
            query=request.query,
            collection=collection,
            key=request.key,
            headers=request.headers,
            body=_readable(request.body),
            body_sha256=digest(request.body),
            complete=request.complete,
            connection=connection,
        )
        self._wake()

    def _well(self, request: Request, collection: str, rest: list[str]) -> Reply:
        match request.method, rest:
            case "POST", []:
                return self._take_effect(request, collection)
            case "GET", []:
                return self._look_up(request.query | {"collection": collection})
            case "GET", ["by-key", key]:
                return self._look_up({"key": key, "collection": collection})
            case "GET", [name]:
                found = self._find(collection, name)
                return Reply.json(200, self._shown(found)) if found else _missing(name)
        return Reply.json(405, {"error": "no such operation"})

    def _take_effect(self, request: Request, collection: str) -> Reply:
        try:
            body = json.loads(request.body) if request.body else None
        except ValueError:
            return Reply.json(400, {"error": "the body is no JSON"})
        earlier = self.book.remembered(collection, request.key)
        if earlier is None:
            return self._created(self.book.add_effect(collection, request.key, body, digest(request.body)))
        if _canonical(earlier.body) != _canonical(body):
            return Reply.json(422, {"error": "this key was used with another body", "id": earlier.id})
        return self._created(earlier, Idempotent_Replayed="true")

    def _created(self, effect: Effect, **headers: str) -> Reply:
        self._wake()
        status = 202 if effect.collection == JOBS else 201
        location = f"/v1/{effect.collection}/{effect.id}"
        return Reply.json(status, self._shown(effect), Location=location, **headers)

    def _look_up(self, query: dict[str, str]) -> Reply:
        if not self.book.mode(query["collection"]).lookup:
            return Reply.json(405, {"error": "this collection offers no look-up"})
        return Reply.json(200, [self._shown(each) for each in self._effects(query)])

    def _find(self, collection: str, name: str) -> Effect | None:
        mine = (each for each in self.book.effects if each.collection == collection)
        return next((each for each in mine if each.id == name), None)

    def _shown(self, effect: Effect) -> dict[str, Any]:
        if effect.collection != JOBS:
            return asdict(effect)
        return asdict(effect) | asdict(self.book.jobs.get(effect.id, Job()))

    # What tests call.

    async def _control(self, request: Request, parts: list[str]) -> Reply:
        try:
            match request.method, parts:
                case "GET", ["book"]:
                    return await self._counted(request.query, self._effects)
                case "GET", ["requests"]:
                    return await self._counted(request.query, self._requests)
                case "POST", _:
                    return self._steer(parts, json.loads(request.body) if request.body else {})
        except (ValueError, TypeError, KeyError) as error:
            return Reply.json(400, {"error": f"{type(error).__name__}: {error}"})
        return Reply.json(404, {"error": "no such control"})

    def _steer(self, parts: list[str], given: dict[str, Any]) -> Reply:
        match parts:
            case ["faults"]:
                self.faults.plan.add(Planned(Fault.named(given.pop("fault")), **given))
            case ["faults", "clear"]:
                self.faults.plan.clear()
            case ["modes"]:
                self.book.set_mode(given.pop("collection"), Mode(**given))
            case ["release"]:
                self.faults.release(given.get("times"))
            case ["reset"]:
                self.faults.forget()
                self.book.reset()
            case ["jobs", name, "finish"]:
                return self._finish_job(name, given.get("status", "done"), given.get("result"))
            case _:
                return Reply.json(404, {"error": "no such control"})
        return Reply.json(200, {})

    async def _counted(self, query: dict[str, str], find: Callable[[dict[str, str]], list[Any]]) -> Reply:
        """What `find` finds, once there are `at_least` of it or `timeout_s` has passed."""
        least = int(query.get("at_least", "0"))
        try:
            async with asyncio.timeout(float(query.get("timeout_s", "0")) if least else None):
                while len(find(query)) < least:
                    await self._changed.wait()
        except TimeoutError:
            pass  # the caller sees from the count that it was not reached
        return Reply.json(200, [asdict(each) for each in find(query)])

    def _effects(self, query: dict[str, str]) -> list[Effect]:
        return [each for each in self.book.effects if _fits(each, query, ("collection", "key", "reference"))]

    def _requests(self, query: dict[str, str]) -> list[SeenRequest]:
        return [each for each in self.book.requests if _fits(each, query, ("collection", "key", "method"))]

    def _finish_job(self, name: str, status: str, result: Any) -> Reply:
        found = self._find(JOBS, name)
        if found is None:
            return _missing(name)
        if status not in JOB_STATES:
            raise ValueError(f"status is one of {', '.join(JOB_STATES)}")
        self.book.set_job(name, status, result)
        return Reply.json(200, self._shown(found))

    def _wake(self) -> None:
        # Everyone who waits looks again; a fresh event serves those who wait after that.
        self._changed.set()
        self._changed = asyncio.Event()


def _fits(item: Effect | SeenRequest, query: dict[str, str], names: tuple[str, ...]) -> bool:
    return all(getattr(item, name) == query[name] for name in names if name in query)


def _readable(body: bytes) -> Any:
    """The body as JSON if it is that, else as text in which every byte is one character; None if empty."""
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode("latin-1")


def _canonical(body: Any) -> str:
    return json.dumps(body, sort_keys=True)


def _missing(name: str) -> Reply:
    return Reply.json(404, {"error": "not found", "id": name})
