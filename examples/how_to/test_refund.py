from pathlib import Path

import pytest
from reconcile_hook import refund

from tollhouse import Tollhouse
from tollhouse.errors import CallNotSent, InDoubt
from tollhouse.testing.receiver import Receiver


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Receiver.start(tmp_path / "book.jsonl") as receiver:
        monkeypatch.setenv("PROVIDER", receiver.url)
        yield receiver


def memory():
    return Tollhouse.open("sqlite:///:memory:", tools=[refund], volatile=True, background=False)


@pytest.mark.asyncio
async def test_lost_reply_is_found_by_the_look_up(provider: Receiver):
    provider.fault("reset_after_effect")
    async with memory() as house:
        with pytest.raises(InDoubt):
            await house.call(refund, {"order": "7", "cents": 2500}, key="order-7:refund")
        assert (await house.reconcile("order-7:refund")).state == "succeeded"
    assert len(provider.effects("refunds")) == 1


@pytest.mark.asyncio
async def test_absence_does_not_count_at_once(provider: Receiver):
    provider.fault("reset_before_effect")
    async with memory() as house:
        with pytest.raises(InDoubt):
            await house.call(refund, {"order": "7", "cents": 2500}, key="order-7:refund")
        assert (await house.reconcile("order-7:refund")).state == "in_doubt"


@pytest.mark.asyncio
async def test_provider_that_is_down_leaves_no_doubt(provider: Receiver):
    provider.close()
    async with memory() as house:
        with pytest.raises(CallNotSent):
            await house.call(refund, {"order": "7", "cents": 2500}, key="order-7:refund")
