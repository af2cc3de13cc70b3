"""Drivers: whoever drives, however many of them, whatever is lost on the way, every run ends and no effect repeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.runs import Bank, OpenStage, Stage, agent, calls, driven_only, lose, on_sqlite
from tollhouse import CallContext, external, read, tool, write
from tollhouse.errors import RunNotAllowed, StoreUnavailable
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunWrite
from tollhouse.models.port import ModelFailed, ModelRequest
from tollhouse.operations.purge import purge
from tollhouse.runs import advance as advance_module
from tollhouse.runs import journal
from tollhouse.runs.advance import Lost
from tollhouse.runs.agents import AgentApproval
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.view import RunView

TOOLS = ("credit", "letter", "balance")
CREDIT = ("credit", {"account": "a1", "cents": 5})
LETTER = ("letter", {"to": "a1", "text": "hello"})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a driver pauses for in production need not be waited for here."""
    from tollhouse.runs.drivers import driving

    monkeypatch.setattr(driving, "PAUSE_FIRST_S", 0.001)


async def ended(stage: Stage, run_id: str) -> RunView:
    """The run once it has ended."""
    with stage.runs.bus.subscribe(run_id) as moves:
        while not (run := await stage.runs.get(run_id)).record.finished:
            try:
                await asyncio.wait_for(moves.get(), 0.05)  # the other house has a bus of its own
            except TimeoutError:
                continue
    return run


@pytest.fixture
async def drivers() -> AsyncIterator[list[LocalDriver]]:
    """Drivers that are stopped when the test ends."""
    started: list[LocalDriver] = []
    yield started
    for driver in started:
        await driver.stop(5)


# case C02
@driven_only
@on_sqlite
async def test_long_step_is_not_taken_over_while_its_process_lives(open_stage: OpenStage, bank: Bank) -> None:
    """A tool that takes longer than any threshold stays where it is as long as its process renews its lease."""
    in_tool, go_on = asyncio.Event(), asyncio.Event()

    @tool(external(attempt_timeout_s=3600, deadline_s=3600))
    async def slow(ctx: CallContext) -> Any:
        """Take long, then pay."""
        response = await ctx.http.post(f"{bank.receiver.url}/v1/credits", json={"account": "a", "cents": 1})
        in_tool.set()
        await go_on.wait()
        return response.json()

    stage = await open_stage(slow, agents=[agent(tools=("slow",))], clerk=[calls(("slow", {})), "ok"])
    first, second = (LocalDriver(runs) for runs in stage.all_runs)
    run = await stage.runs.start("clerk", "go", by="ada")
    await first.round()
    await in_tool.wait()
    for _ in range(3):
        stage.clock.advance(600)
        await stage.houses[1].services.round()
        assert await second.round() == 0
    go_on.set()
    await first.settle()
    run = await stage.runs.get(run.id)
    assert (run.state, len(bank.credits)) == ("succeeded", 1)
    assert (await kinds(stage, run)).count("run_claimed") == 1


async def kinds(stage: Stage, run: RunView) -> list[str]:
    """Everything that happened to the run, who drove included."""
    return [event.kind for event in await stage.events(run.id)]


# case C07
@driven_only
async def test_result_that_nobody_took_is_not_made_again(open_stage: OpenStage, bank: Bank) -> None:
    """A driver that is gone between a sibling's effect and the run's note of it leaves the result on its own row."""
    agents = [agent(tools=TOOLS, approvals={"letter": AgentApproval()})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT, LETTER), "ok"])
    run = await stage.runs.start("clerk", "go", by="ada")
    drive = await stage.runs.claim(run.record)
    await drive.step()
    bank.receiver.fault("hold_after_effect", collection="credits")
    step = asyncio.create_task(drive.step())
    await bank.receiver.await_for_effects(1)
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    await lose(stage.house)
    bank.receiver.release()
    call = await stage.house.wait(f"{run.id}:1.1", timeout_s=20)
    assert call.state == "succeeded"
    assert await stage.results(run.id) == []
    again = LocalDriver(stage.all_runs[1])
    await again.settle()
    run = await stage.runs.get(run.id)
    assert run.state == "awaiting_approval"
    await stage.house.approve(f"{run.id}:1.2", by="bob")
    await again.settle()
    assert (await stage.runs.get(run.id)).state == "succeeded"
    assert (len(bank.credits), bank.letters) == (1, 1)
    assert (await stage.results(run.id))[0]["replayed"]


@driven_only
async def test_purge_spares_a_run_that_goes_on_and_a_rerun_hears_of_it(
    open_stage: OpenStage, bank: Bank, shared_store_url: str
) -> None:
    """Calls of an unfinished run keep their results; after its end, a rerun hears that there is none to reuse."""
    agents = [agent(tools=TOOLS, approvals={"letter": AgentApproval()})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT, LETTER), "ok"])
    run = await stage.run()
    assert (await purge(shared_store_url, stage.runs.tenant, older_than_s=-60)).calls == {}
    await stage.house.approve(f"{run.id}:1.2", by="bob")
    assert (await stage.settled(run.id)).state == "succeeded"
    assert (await purge(shared_store_url, stage.runs.tenant, older_than_s=-60)).calls == {"succeeded": 2}
    again = await stage.settled((await stage.runs.rerun(run.id, by="ada", effects="reuse")).id)
    assert (again.state, len(bank.credits), bank.letters) == ("succeeded", 1, 1)
    results = await stage.results(again.id)
    assert [(each["call_state"], each["code"]) for each in results] == [("succeeded", "result_purged")] * 2
    assert all("purged" in each["text"] for each in results)
    await stage.conversation(run.id)


# case C17
@driven_only
async def test_of_two_that_recover_a_run_one_stops(open_stage: OpenStage, bank: Bank) -> None:
    """Two processes that take up the same run: one has it, the other stops; outcome and steps agree."""
    stage = await open_stage(
        *bank.tools, agents=[agent(tools=TOOLS, questions=True)],
        clerk=[calls(("ask_person", {"question": "How much?"}), CREDIT), "ok"],
    )  # fmt: skip
    run = await stage.run()
    await stage.runs.answer(run.id, run.waiting[0].id, "five", by="bob")
    record = (await stage.runs.get(run.id)).record
    claims = await asyncio.gather(*(runs.claim(record) for runs in stage.all_runs), return_exceptions=True)
    assert sum(isinstance(each, Lost) for each in claims) == 1
    (drive,) = [each for each in claims if not isinstance(each, BaseException)]
    while (await drive.step()).kind == "continue":
        pass
    run = await stage.runs.get(run.id)
    assert (run.state, len(bank.credits)) == ("succeeded", 1)
    assert (await stage.results(run.id))[0]["text"] == "five"
    assert (await kinds(stage, run)).count("model_answered") == 2


@driven_only
async def test_two_drives_of_one_process_ask_once(open_stage: OpenStage, bank: Bank) -> None:
    """Should one process drive a run twice, the second finds the first's step and stops: no turn is there twice."""
    both_ask = asyncio.Barrier(2)

    async def at_once(request: ModelRequest) -> Any:
        if request.key.endswith(":1"):
            await both_ask.wait()
        return calls(CREDIT)["call"] if request.key.endswith(":1") else "ok"

    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=at_once)
    run = await stage.runs.start("clerk", "go", by="ada")
    first = await stage.runs.claim(run.record)
    second = await stage.runs.claim(first.record)
    steps = await asyncio.gather(first.step(), second.step(), return_exceptions=True)
    assert sum(isinstance(step, Lost) for step in steps) == 1
    await stage.settle()
    assert (await stage.runs.get(run.id)).state == "succeeded"
    assert [facts["turn"] for facts in await stage.facts(run.id, "model_answered")] == [1, 2]
    assert len(bank.credits) == 1


# case H07
@driven_only
@pytest.mark.parametrize("place", ["model", "tool"])
async def test_process_that_starts_disturbs_no_live_run(
    open_stage: OpenStage, bank: Bank, drivers: list[LocalDriver], place: str
) -> None:
    """A new process beside one that is inside a model call or a tool waits; the run ends as if it were alone."""
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def pause(here: str) -> None:
        if here == place:
            inside.set()
            await go_on.wait()

    @tool(external())
    async def slow(ctx: CallContext) -> Any:
        """Pay, after a while."""
        await pause("tool")
        return (await ctx.http.post(f"{bank.receiver.url}/v1/credits", json={"account": "a", "cents": 1})).json()

    async def model(request: ModelRequest) -> Any:
        await pause("model" if request.key.endswith(":1") else "")
        return calls(("slow", {}))["call"] if request.key.endswith(":1") else "ok"

    stage = await open_stage(slow, agents=[agent(tools=("slow",))], clerk=model)
    drivers.append(LocalDriver(stage.runs))
    drivers[0].start()
    run = await stage.runs.start("clerk", "go", by="ada")
    await inside.wait()
    newer = LocalDriver(stage.all_runs[1])
    await stage.houses[1].services.round()
    assert await newer.round() == 0
    with pytest.raises(RunNotAllowed):
        await stage.all_runs[1].advance(run.id)
    with pytest.raises(Lost):
        await stage.all_runs[1].claim((await stage.runs.get(run.id)).record)
    go_on.set()
    run = await ended(stage, run.id)
    assert (run.state, len(bank.credits)) == ("succeeded", 1)
    assert (await kinds(stage, run)).count("run_claimed") == 1


@driven_only
async def test_stopped_driver_hands_over_and_another_goes_on(
    open_stage: OpenStage, bank: Bank, drivers: list[LocalDriver]
) -> None:
    """Shutdown ends after its grace although a model does not answer; the next process asks again."""
    asked = asyncio.Event()

    async def slow_once(request: ModelRequest) -> Any:
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return calls(CREDIT)["call"] if request.key.endswith(":1") else "ok"

    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=slow_once)
    first = LocalDriver(stage.runs)
    first.start()
    run = await stage.runs.start("clerk", "go", by="ada")
    await asked.wait()
    await first.stop(grace_s=0.05)
    assert (await stage.runs.get(run.id)).state == "queued"
    await LocalDriver(stage.all_runs[1]).settle()
    assert (await stage.runs.get(run.id)).state == "succeeded"
    assert len(bank.credits) == 1


# -- a store that is away ---------------------------------------------------------------------------------------


class Shaky:
    """Stands before a store's `write_run`: the n-th write of a run fails, before it is applied or after."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch, n: int, *, applied: bool) -> None:
        self._write_run, self._left, self._applied = stage.runs.store.write_run, n, applied
        monkeypatch.setattr(stage.runs.store, "write_run", self.write_run)

    async def write_run(self, write: RunWrite) -> Any:
        self._left -= 1
        if self._left == 0 and not self._applied:
            raise StoreUnavailable("The store is away.")
        written = await self._write_run(write)
        if self._left == 0:
            raise StoreUnavailable("The acknowledgement was lost.")
        return written


@driven_only
@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "applied"])
@pytest.mark.parametrize("n", range(1, 7))
async def test_lost_commit_of_any_step_repeats_nothing(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch, n: int, applied: bool
) -> None:
    """Whichever commit of a run fails, or is applied without an answer, it ends with each turn and effect once."""
    monkeypatch.setattr("tollhouse.runs.drivers.local.PAUSE_MOST_S", 0.01)
    agents = [agent(tools=TOOLS), agent("boss", agents=("clerk",))]
    stage = await open_stage(
        *bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"], boss=[calls(("agent_clerk", {"input": "pay"})), "ok"]
    )
    run = await stage.runs.start("boss", "go", by="ada")
    Shaky(stage, monkeypatch, n, applied=applied)
    run = await stage.settled(run.id)
    if run.state == "awaiting_reconciliation":
        assert (await stage.house.reconcile(f"{run.id}:1.1")).state in ("accepted", "succeeded", "ready", "failed")
        run = await stage.settled(run.id)
    assert run.state == "succeeded"
    for each in await stage.runs.list():
        turns = [facts["turn"] for facts in await stage.facts(each.id, "model_answered")]
        assert turns == list(range(1, len(turns) + 1))
        await stage.results(each.id)
    assert len(bank.credits) <= 1


@driven_only
async def test_reading_that_fails_after_a_commit_repeats_no_turn(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that was recorded, but could not be read back for its long text, is not asked for again."""
    long = {**calls(CREDIT), "say": "x" * 100_000}
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=[long, "ok"])
    run = await stage.runs.start("clerk", "go", by="ada")
    blob = stage.runs.store.blob
    failed: list[str] = []

    async def away_once(tenant: str, digest: str) -> Any:
        if not failed:
            failed.append(digest)
            raise StoreUnavailable("The store is away.")
        return await blob(tenant, digest)

    monkeypatch.setattr(stage.runs.store, "blob", away_once)
    run = await stage.settled(run.id)
    assert (run.state, len(failed), len(bank.credits)) == ("succeeded", 1, 1)
    assert [request.key for request in stage.model.requests] == [f"{run.id}:1", f"{run.id}:2"]


@driven_only
@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("unforeseen")])
async def test_run_that_is_owned_but_in_nobody_s_hand_is_taken_up(
    open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A claim that failed half-way leaves a run that its process still owns: the next round takes it up."""
    monkeypatch.setattr("tollhouse.runs.drivers.local.PAUSE_MOST_S", 0.01)
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=[calls(CREDIT), "ok"])
    run = await stage.runs.start("clerk", "go", by="ada")
    failed: list[Any] = []

    async def fails_once(*given: Any) -> Any:
        if not failed:
            failed.append(given)
            raise error
        return await journal.read(*given)

    monkeypatch.setattr(advance_module, "read", fails_once)
    run = await stage.settled(run.id)
    assert (run.state, len(bank.credits), len(failed)) == ("succeeded", 1, 1)


@driven_only
async def test_run_that_left_its_hand_while_a_round_looked_asks_nothing_again(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a round saw as this process's own may have made its step before the round is over: it is not made twice."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def away(_request: ModelRequest) -> Any:
        asked.set()
        await go_on.wait()
        raise ModelFailed("model_server_error", "It answered 503.", transient=True)

    stage = await open_stage(agents=[agent()], clerk=away)
    driver = LocalDriver(stage.runs)
    run = await stage.runs.start("clerk", "go", by="ada")
    assert await driver.round() == 1
    runs_to_take = stage.runs.store.runs_to_take

    async def later(*given: Any, **more: Any) -> Any:
        go_on.set()
        await asyncio.gather(*driver._hands.tasks)
        return await runs_to_take(*given, **more)

    await asked.wait()
    monkeypatch.setattr(stage.runs.store, "runs_to_take", later)
    await driver.round()
    await asyncio.gather(*driver._hands.tasks)
    assert (await stage.runs.get(run.id)).state == "awaiting_time"
    assert len(stage.model.requests) == 1


@driven_only
async def test_defect_of_the_loop_fails_the_run_and_says_so(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that cannot be made, for a reason that nobody foresaw, ends the run instead of being tried for ever."""
    stage = await open_stage(agents=[agent(output_schema={"type": "string"})], clerk=['"x"'])

    def broken(*_given: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(advance_module, "check_schema", broken)
    run = await stage.run()
    assert (run.state, (run.reason or {})["code"]) == ("failed", "internal_error")


async def test_advance_makes_one_step_and_keeps_no_claim(open_stage: OpenStage, bank: Bank) -> None:
    """`advance` is a driver of one step, by whichever process; after an error too nobody owns the run."""
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=[calls(CREDIT), "ok"])
    run = await stage.runs.start("clerk", "go", by="ada")
    made = []
    for n in range(3):
        step = await stage.all_runs[n % len(stage.all_runs)].advance(run.id)
        made.append(step.kind)
        assert step.record.owner is None
    assert made == ["continue", "continue", "done"]
    assert (await stage.runs.advance(run.id)).kind == "done"
    assert len(bank.credits) == 1


@driven_only
async def test_advance_that_fails_lets_the_run_go(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that raises leaves the run queued for whoever comes next."""
    stage = await open_stage(agents=[agent()], clerk=["ok"])
    run = await stage.runs.start("clerk", "go", by="ada")

    async def broken(*_given: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(advance_module.Drive, "_ask", broken)
        with pytest.raises(StoreUnavailable):
            await stage.runs.advance(run.id)
    assert ((await stage.runs.get(run.id)).state, (await stage.all_runs[1].advance(run.id)).kind) == ("queued", "done")


# -- many -----------------------------------------------------------------------------------------------------------


@driven_only
async def test_hundred_runs_on_two_houses(open_stage: OpenStage, bank: Bank, drivers: list[LocalDriver]) -> None:
    """A hundred runs started at once, driven by two processes: all end, each with its one effect."""
    stage = await open_stage(*bank.tools, agents=[agent(tools=TOOLS)], clerk=_own_account)
    drivers += [LocalDriver(runs, at_once=30) for runs in stage.all_runs]
    for driver in drivers:
        driver.start()
    runs = await asyncio.gather(
        *(stage.all_runs[n % 2].start("clerk", f"a{n}", by="ada", key=f"k{n}") for n in range(100))
    )
    done = [await ended(stage, run.id) for run in runs]
    assert {run.state for run in done} == {"succeeded"}
    assert sorted(account for account, _ in bank.credits) == sorted(f"a{n}" for n in range(100))


def _own_account(request: ModelRequest) -> Any:
    account = request.messages[0].text
    return [{"tool": "credit", "arguments": {"account": account, "cents": 1}}] if request.key.endswith(":1") else "ok"


@driven_only
async def test_waking_one_of_many_paused_runs_takes_that_one(open_stage: OpenStage, bank: Bank) -> None:
    """Ten thousand paused runs are rows only: an approval wakes its own run, and the look finds nothing else."""
    agents = [agent(tools=TOOLS, approvals={"credit": AgentApproval()})]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT), "ok"])
    run = await stage.run()
    store, tenant, record = stage.runs.store, stage.runs.tenant, run.record
    for start in range(0, 10_000, 500):
        rows = (
            replace(record, id=f"run_{n:026}", version=1, start_key=None, head_seq=1, head_hash=f"{n:064x}")
            for n in range(start, start + 500)
        )
        await asyncio.gather(*(store.write_run(RunWrite(row, None, (), f"w{row.id}")) for row in rows))
    assert (await stage.runs.count())["awaiting_approval"] == 10_001
    assert await store.runs_to_take(tenant, "local", 100) == []
    await stage.house.approve(run.waiting[0].id, by="bob")
    assert [taken.id for taken in await store.runs_to_take(tenant, "local", 100)] == [run.id]
    assert (await stage.settled(run.id)).state == "succeeded"


@driven_only
async def test_commits_of_a_run_with_one_write(open_stage: OpenStage) -> None:
    """A run with two model calls and one write costs eight commits at most, from its start to its end."""

    @tool(write())
    async def put() -> int:
        """Write at once."""
        return 1

    @tool(read())
    async def get() -> int:
        """Read at once."""
        return 1

    stage = await open_stage(put, get, agents=[agent(tools=("put",))], clerk=[calls(("put", {})), "ok"], houses=1)
    await stage.run()
    counters: Any = stage.house.store.counters
    before = counters.commits
    run = await stage.run()
    assert run.state == "succeeded"
    assert counters.commits - before <= 8


async def test_interrupted_read_strands_no_run(open_stage: OpenStage) -> None:
    """A read is made again by whoever takes the run over: nothing is in doubt, nothing waits."""
    tries: list[int] = []
    hang = asyncio.Event()

    @tool(read())
    async def slow() -> str:
        """Hang once."""
        tries.append(1)
        if len(tries) == 1:
            await hang.wait()
        return "read"

    stage = await open_stage(slow, agents=[agent(tools=("slow",))], clerk=[calls(("slow", {})), "ok"])
    run = await stage.runs.start("clerk", "go", by="ada")
    drive = await stage.runs.claim(run.record)
    await drive.step()
    step = asyncio.create_task(drive.step())
    while not tries:  # noqa: ASYNC110 - the tool tells nobody else
        await asyncio.sleep(0.001)
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    await lose(stage.house)
    run = await stage.settled(run.id)
    hang.set()
    assert (run.state, len(tries)) == ("succeeded", 2)
