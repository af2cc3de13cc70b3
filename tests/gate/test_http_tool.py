"""A tool that is declared as an HTTP endpoint keeps the same promises as one that is written."""

from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator, model_validator

from tests.support.houses import OpenHouse, on_one_store
from tollhouse import AttemptOutcome, State, Tool, dedup, destructive, external, read
from tollhouse.contract.terms import Effect
from tollhouse.errors import CallFailed, CallNotSent, ContractError, InDoubt, InvalidArguments
from tollhouse.testing.ports import free_port
from tollhouse.testing.receiver import Receiver
from tollhouse.tools.http import http_tool


class Credit(BaseModel):
    """What a credit takes, as the provider writes it."""

    account: str = Field(description="Whose account")
    amount: Decimal = Field(alias="amountValue", gt=0)
    due: date | None = None
    kind: Literal["gift", "refund"] = "gift"
    tags: list[str] = Field(default_factory=list)

    @field_validator("account")
    @classmethod
    def known(cls, account: str) -> str:
        """A rule of the model's own."""
        if account == "closed":
            raise ValueError("is closed")
        return account

    @model_validator(mode="after")
    def refunds_are_dated(self) -> "Credit":
        """A rule over two fields."""
        if self.kind == "refund" and self.due is None:
            raise ValueError("a refund has a date")
        return self


# case H06
async def test_a_slow_post_is_sent_once_with_its_key_and_is_in_doubt(open_house: OpenHouse, receiver: Receiver) -> None:
    """A receiver slower than the timeout gets one request, which carries the key; asking again sends no other."""
    receiver.fault("hold_after_effect", collection="credits")
    credit = http_tool("credit", "POST", f"{receiver.url}/v1/credits", external(attempt_timeout_s=0.5), {"cents": int})
    house = await open_house(credit)
    for _ in range(3):
        with pytest.raises(InDoubt):
            await house.call(credit, {"cents": 5}, key="k")
    requests = receiver.requests("credits")
    assert [request.key for request in requests] == [(await house.get("k")).idempotency_key]
    assert len(receiver.effects("credits")) == 1


@on_one_store
async def test_a_model_is_sent_as_it_writes_itself(open_house: OpenHouse, receiver: Receiver) -> None:
    """Aliases on the wire, what is None left out, its own validators before anything is written."""
    credit = http_tool("credit", "POST", f"{receiver.url}/v1/credits", external(), Credit, description="Credit.")
    assert list(credit.json_schema["properties"]) == ["account", "amountValue", "due", "kind", "tags"]
    assert credit.json_schema["required"] == ["account", "amountValue"]
    assert credit.json_schema["properties"]["account"]["description"] == "Whose account"
    assert credit.json_schema["description"] == "Credit."
    house = await open_house(credit)
    given = {"account": "a1", "amountValue": "2.50", "due": "2026-11-05", "kind": "refund"}
    outcome = await house.call(credit, given, key="k")
    assert outcome.value["id"].startswith("credits-")
    assert receiver.requests()[0].body == {**given, "tags": []}
    await house.call(credit, {"account": "a2", "amountValue": 3}, key="k2")
    assert receiver.requests()[1].body == {"account": "a2", "amountValue": "3", "kind": "gift", "tags": []}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"account": "closed", "amountValue": 1}, "account"),
        ({"account": "a1", "amountValue": 1, "kind": "refund"}, "arguments"),
        ({"account": "a1", "amountValue": 0}, "amountValue"),
        ({"account": "a1", "amount": 1}, "amountValue"),
    ]
    for arguments, path in wrong:
        with pytest.raises(InvalidArguments) as caught:
            await house.call(credit, arguments, key="k3")
        assert caught.value.path == path
    assert len(receiver.requests()) == 2


@on_one_store
async def test_parameters_find_their_place(open_house: OpenHouse, receiver: Receiver) -> None:
    """Named in the path, named in ``query``, and the rest in the body, or in the query of a method that has none."""
    typed = {"account": str, "part": str, "cents": "integer", "dry": ("boolean", None), "note": (str | None, None)}
    base = f"{receiver.url}/v1/credits"
    post = http_tool("post", "post", base + "/{account}/x", external(), typed, query=["part"])
    get = http_tool(
        "get", "GET", base + "/{account}", read(), {**typed, "tags": (list[str], [])}, result=dict[str, Any]
    )
    house = await open_house(post, get)
    given = {"account": "a/ü 1", "part": "p&q", "cents": 5, "dry": True}
    with pytest.raises(InDoubt):  # this receiver knows no such path, and a status that no contract names proves nothing
        await house.call(post, given, key="k")
    sent = receiver.requests(method="POST")[0]
    assert (sent.path, sent.query, sent.body) == ("/v1/credits/a/ü 1/x", {"part": "p&q"}, {"cents": 5, "dry": True})
    with pytest.raises(CallFailed):
        await house.call(get, {**given, "dry": False})
    looked = receiver.requests(method="GET")[0]
    assert (looked.query, looked.body) == ({"part": "p&q", "cents": "5", "dry": "false"}, None)
    assert looked.key is None


@on_one_store
async def test_an_argument_never_names_another_path(open_house: OpenHouse, receiver: Receiver) -> None:
    """It is one segment, whatever a model writes into it."""
    url = f"{receiver.url}/v1/credits/{{account}}"
    credit = http_tool("credit", "PUT", url, external(), {"account": Annotated[str, "Whose"]})
    house = await open_house(credit)
    for number, odd in enumerate((".", "..", "")):
        with pytest.raises(InvalidArguments) as caught:
            await house.call(credit, {"account": odd}, key=f"k{number}")
        assert caught.value.path == "account"
    assert receiver.requests() == []
    for number, odd in enumerate(("../../admin", "a?b=c", "a#b", "%2e%2e")):
        with pytest.raises(InDoubt):
            await house.call(credit, {"account": odd}, key=f"sent{number}")
    paths = [request.path for request in receiver.requests()]
    assert paths == [f"/v1/credits/{odd}" for odd in ("../../admin", "a?b=c", "a#b", "%2e%2e")]
    assert [request.query for request in receiver.requests()] == [{}] * 4


@on_one_store
async def test_secrets_go_into_headers_and_nowhere_else(open_house: OpenHouse, receiver: Receiver) -> None:
    """Resolved by name when it is sent; a secret that is missing stops the request before it leaves."""
    headers = {"Authorization": "Bearer {secrets.token}", "Accept-Language": "de"}
    credit = http_tool("credit", "POST", f"{receiver.url}/v1/credits", external(), headers=headers)
    house = await open_house(credit, secrets=lambda _tool: {"token": "t0ken"})
    await house.call(credit, key="k")
    sent = receiver.requests()[0].headers
    assert (sent["authorization"], sent["accept-language"]) == ("Bearer t0ken", "de")
    assert "t0ken" not in str(await house.get("k"))
    poor = await open_house(credit)
    with pytest.raises(CallNotSent):
        await poor.call(credit, key="k2")
    assert len(receiver.requests()) == 1


@on_one_store
async def test_answers_come_to_outcomes_by_the_contract(open_house: OpenHouse, receiver: Receiver) -> None:
    """2xx happened, what the contract names is a rejection, 202 is accepted where long work was declared."""
    url = f"{receiver.url}/v1/credits"
    credit = http_tool("credit", "POST", url, external(rejects=[422]))
    job = http_tool("job", "POST", f"{receiver.url}/v1/jobs", external(accepts=True))
    nowhere = http_tool("nowhere", "POST", f"http://127.0.0.1:{free_port()}/", external())
    house = await open_house(credit, job, nowhere)
    receiver.fault("error_before_effect", collection="credits", status=422)
    with pytest.raises(CallFailed):
        await house.call(credit, key="rejected")
    for number, fault in enumerate(("error_before_effect", "garbage", "reset_after_effect", "redirect")):
        receiver.fault(fault, collection="credits")
        with pytest.raises(InDoubt):
            await house.call(credit, key=f"doubt{number}")
    accepted = await house.call(job, key="job")
    assert accepted.state is State.ACCEPTED
    assert accepted.reference == receiver.requests("jobs")[0].path + f"/{receiver.effects('jobs')[0].id}"
    with pytest.raises(CallNotSent):
        await house.call(nowhere, key="nowhere")
    assert (await house.get("nowhere")).attempts[0].outcome is AttemptOutcome.NOT_SENT


async def test_under_dedup_the_same_bytes_are_sent_again(open_house: OpenHouse, receiver: Receiver) -> None:
    """A lost answer is asked for again with the same key and body, and the receiver replays it."""
    receiver.mode("credits", keyed=True)
    receiver.fault("reset_after_effect", collection="credits")
    url = f"{receiver.url}/v1/credits"
    credit = http_tool("credit", "POST", url, external(dedup=dedup.by_key(hours=24)), Credit)
    house = await open_house(credit)
    outcome = await house.call(credit, {"account": "a1", "amountValue": "1.10"}, key="k")
    assert outcome.attempts == 2
    requests = receiver.requests("credits")
    assert len({(request.key, request.body_sha256) for request in requests}) == 1
    assert len(requests) == 2
    assert len(receiver.effects("credits")) == 1


def test_a_declared_tool_departs_at_its_check() -> None:
    """Nothing leaves before ``ctx.http`` has checked, so the contract says so."""
    declared: list[Tool[Any]] = [
        http_tool("a", "POST", "https://a.example/x", external()),
        http_tool("b", "DELETE", "https://a.example/x", destructive(departs="at_confirm")),
        http_tool("c", "GET", "https://a.example/x", read()),
    ]
    assert {each.terms.departs for each in declared} == {"at_confirm"}
    assert [each.effect for each in declared] == [Effect.EXTERNAL, Effect.DESTRUCTIVE, Effect.READ]


CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    ("method", {"method": "FETCH"}),
    ("method", {"method": "GET"}),
    ("method", {"method": "head"}),
    ("url", {"url": "/v1/credits"}),
    ("url", {"url": "ftp://a.example/"}),
    ("url", {"url": "https:///credits"}),
    ("url", {"url": "https://{host}.example/", "parameters": {"host": str}}),
    ("url", {"url": "https://a.example/?q={q}", "parameters": {"q": str}}),
    ("url", {"url": "https://user:password@a.example/"}),
    ("url", {"url": "https://a.example/{missing}"}),
    ("query", {"query": ["missing"]}),
    ("parameters", {"parameters": {"ctx": str}}),
    ("parameters", {"parameters": {"not a name": str}}),
    ("parameters", {"parameters": {"x": "text"}}),
    ("parameters", {"parameters": ["x"]}),
    ("parameters", {"parameters": {"x": type}}),
    ("departs", {"declaration": external(departs="at_start")}),
    ("name", {"name": "issue credit"}),
    ("retries", {"retries": 3}),
]


@pytest.mark.parametrize(("field", "given"), CONTRADICTIONS, ids=lambda part: str(part)[:40])
def test_a_declaration_that_contradicts_itself_names_its_field(field: str, given: dict[str, Any]) -> None:
    """At import, with a remedy, as for every contract."""
    good = {"name": "credit", "method": "POST", "url": "https://a.example/credits", "declaration": external()}
    with pytest.raises(ContractError) as caught:
        http_tool(**{**good, **given})
    assert caught.value.field == field
    assert caught.value.remedy.endswith(".")
