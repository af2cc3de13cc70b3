"""The context a tool may ask for: a parameter annotated :class:`CallContext` receives it and is no part of the schema.

The gate implements this; it stands here so that a contract can recognise the annotation without knowing the gate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2


class CallContext(ABC):
    """What one attempt knows about itself, and its checked ways to the outside.

    ``attempt`` counts the sendings of this call from 1. ``deadline`` is the moment (``time.time()`` seconds) after
    which nobody waits for this attempt any more; ``remaining_s`` the seconds until then, never negative.
    """

    key: str
    idempotency_key: str
    attempt: int
    deadline: float
    tenant: str
    principal: str

    @property
    @abstractmethod
    def remaining_s(self) -> float:
        """Seconds until ``deadline``, at least 0."""

    @property
    @abstractmethod
    def secrets(self) -> dict[str, str]:
        """Secrets this tool was granted, by name; empty when none are configured."""

    @property
    @abstractmethod
    def http(self) -> httpx2.AsyncClient:
        """A client that re-checks the fence before the first byte and sends the idempotency key.

        Its times are finite, it never retries, and it raises :class:`NotSent` or :class:`Rejected` where proven, judged
        by all requests of the attempt that may have an effect (``GET``, ``HEAD`` and ``OPTIONS`` have none). What a
        tool does by other means counts once it has passed :meth:`confirm`; a tool that does not confirm it catches
        :class:`NotSent` and raises what is true.
        """

    @property
    @abstractmethod
    def http_sync(self) -> httpx2.Client:
        """The same for ``def`` tools."""

    @abstractmethod
    async def confirm(self) -> None:
        """Check for the last time that this attempt may still send; call it just before the effect.

        Raises :class:`NotSent` when the call was taken over, settled, cancelled or ran out of time, or when the store
        cannot be asked: unreachable means no.
        """

    @abstractmethod
    def confirm_sync(self) -> None:
        """:meth:`confirm` for ``def`` tools, which run in a thread."""

    @abstractmethod
    def subkey(self, name: str) -> str:
        """An idempotency key for a second send of the same call; the same name always gives the same key."""
