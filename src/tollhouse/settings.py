"""The settings of a house, with their bounds. The settings reference in the docs is generated from here.

A setting may tighten a contract, never loosen it. On the command line a flag outranks the environment variable, which
outranks the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tollhouse.contract.checks import TIME_MOST_S
from tollhouse.contract.tool import Tool
from tollhouse.errors import InvalidSetting
from tollhouse.gate.core import Listener
from tollhouse.gate.verdicts import Check
from tollhouse.ledger.keys import check_tenant


def _setting(default: Any, doc: str, *, env: str | None = None) -> Any:
    """A field with what the settings reference says of it."""
    return field(default=default, metadata={"doc": doc, "env": env})


@dataclass(frozen=True, kw_only=True)
class HouseSettings:
    """What :meth:`Tollhouse.open` accepts. Times in seconds."""

    tools: Iterable[Tool[Any]] = _setting((), "The tools this house has: its capability allowlist.")
    tenant: str = _setting(
        "default", "Whose calls these are; every row and query is scoped by it.", env="TOLLHOUSE_TENANT"
    )
    principal: str = _setting(
        "local", "Who asks, where a call says nothing else; never their own approver.", env="TOLLHOUSE_PRINCIPAL"
    )
    lease_s: float = _setting(
        30.0,
        "How long this process may go unheard before its calls are in doubt: 0.2 to 3600.",
        env="TOLLHOUSE_LEASE_S",
    )
    renew_every_s: float | None = _setting(None, "How often the lease is renewed; None: a quarter of it. At most half.")
    volatile: bool = _setting(False, "Accept a store that may forget departures after a power cut (tests, trials).")
    background: bool = _setting(
        True, "Run sweeper and reconciler in this process; False leaves them to `tollhouse worker`."
    )
    every_s: float | None = _setting(
        None, "Pause between rounds of the background services; None: an eighth of the lease, 0.05 to 2."
    )
    max_attempts: int | None = _setting(None, "Ceiling on the sendings of a round, over all contracts; None: none.")
    attempt_timeout_s: float | None = _setting(None, "Ceiling on the time of one sending; None: none.")
    deadline_s: float | None = _setting(None, "Ceiling on the time of all sendings with their waits; None: none.")
    run_when_approved: bool = _setting(False, "Run approved calls without waiting for their caller to come back.")
    doubt_alarm_s: float = _setting(3600.0, "Age from which a doubt is told of again and again (`doubt_aged`).")
    grace_s: float = _setting(10.0, "How long closing waits for attempts under way before it stops them.")
    threads: int = _setting(64, "How many `def` tools may run at the same time: 1 to 1000.")
    store_wait_s: float = _setting(10.0, "How long a write waits for a store that is locked or away before it fails.")
    gates: Iterable[Check] = _setting((), "Gates of your own, asked in order before the contract's approval.")
    visible: Callable[[str, str], bool] | None = _setting(
        None, "Whether a principal may see a tool (`visible(principal, tool)`); None: everybody sees every tool here."
    )
    secrets: Callable[[str], Mapping[str, str]] | None = _setting(
        None, "Secrets a tool is granted, by its name, as `ctx.secrets`; None: none."
    )
    on_event: Listener | None = _setting(
        None,
        "Called as `on_event(kind, facts)` when a doubt appears, ages or ends, a contradiction opens, a call is held.",
    )

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        named: Any = self.principal
        if not isinstance(named, str) or not 1 <= len(named) <= 200:
            raise InvalidSetting("principal= must be 1 to 200 characters.")
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_s") and not (value is None and each.default is None):
                _check_seconds(each.name, value)
            if each.name in ("tools", "gates") and not isinstance(value, Iterable):
                raise InvalidSetting(f"{each.name}= must be a list.")
            if each.name in ("visible", "secrets", "on_event") and not (value is None or callable(value)):
                raise InvalidSetting(f"{each.name}= must be a function.")
        if self.max_attempts is not None:
            _check_count("max_attempts", self.max_attempts, 100)
        _check_count("threads", self.threads, 1000)

    @property
    def ceilings(self) -> dict[str, float]:
        """The house's own limits, those that are set."""
        names = ("max_attempts", "attempt_timeout_s", "deadline_s")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def round_every_s(self) -> float:
        """The pause between rounds of the services."""
        return self.every_s if self.every_s is not None else min(2.0, max(0.05, self.lease_s / 8))


def settings_of(given: Mapping[str, Any]) -> HouseSettings:
    """The settings from keyword arguments. Raises :class:`InvalidSetting` for a name that does not exist."""
    known = {f.name for f in fields(HouseSettings)}
    for name in given:
        if name not in known:
            raise InvalidSetting(
                f"There is no setting {name!r}.", remedy=f"Known settings: {', '.join(sorted(known))}."
            )
    return HouseSettings(**given)


def _check_seconds(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= value <= TIME_MOST_S or (value == 0 and name != "grace_s"):
        raise InvalidSetting(f"{name}={value!r} is no length of time in seconds, a century at most.")


def _check_count(name: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidSetting(f"{name}={value!r} is not 1 to {most}.")
