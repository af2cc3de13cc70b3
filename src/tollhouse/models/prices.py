"""What a sending cost: tokens as the provider counted them, dollars from the price list of ``genai-prices``.

A price that is not on the list is None, which is not zero. ``wire.py`` calls it for every sending that reported usage.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_ai.usage import RequestUsage


@dataclass(frozen=True, slots=True)
class Bill:
    """Tokens and US dollars of one sending; None: not said, or the price is unknown."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: Decimal | None = None


def bill_of(usage: RequestUsage | None, models: tuple[str, ...], seller: str | None, url: str | None) -> Bill:
    """The bill for a usage. ``models``: names to look up, the most exact first.

    ``seller``: the provider's id on the price list; None: it is found by ``url``. A model's name alone finds no price:
    the same model costs something else elsewhere, and nothing on a machine of one's own.
    """
    if usage is None or not (usage.input_tokens or usage.output_tokens):
        return Bill()
    cost = next((found for name in models if (found := _price(usage, name, seller, url)) is not None), None)
    return Bill(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, cost)


def _price(usage: RequestUsage, model: str, seller: str | None, url: str | None) -> Decimal | None:
    from genai_prices import calc_price

    try:
        if seller is not None:
            return calc_price(usage, model, provider_id=seller).total_price
        return calc_price(usage, model, provider_api_url=url).total_price if url else None
    except (LookupError, ValueError):
        return None
