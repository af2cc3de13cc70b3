"""What a tool and its hooks say about the world: the words of evidence.

A tool that returns says *happened*; one that raises anything says *unknown*, unless it raises one of the three below,
which are statements it must be able to prove. A reconcile hook answers with :func:`happened`, :func:`did_not_happen`
or :func:`unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

JobStatus = Literal["cancelled", "failed", "never_queued"]


class NotSent(Exception):
    """Raised by a tool that can prove that no byte of this attempt left. Uses up no attempt.

    ``ctx.http`` raises it by itself when a connection could not be made.
    """


class Rejected(Exception):
    """Raised by a tool when the receiver says that it did nothing, and means it. The call is then *failed*.

    ``transient``: the same request may be accepted later, so that its owner sends again where ``max_attempts`` allows.
    """

    def __init__(self, *args: object, transient: bool = False) -> None:
        super().__init__(*args)
        self.transient = transient


class Accepted(Exception):
    """Raised or returned by a tool whose receiver confirmed long work under ``reference``.

    The call is then *accepted* until a poll of its reconcile hook, a callback or a person settles it.
    """

    def __init__(self, reference: str, message: str | None = None) -> None:
        super().__init__(message or f"accepted under reference {reference}")
        self.reference = str(reference)  # receivers number their jobs, and JSON says so


@dataclass(frozen=True, slots=True)
class Answer:
    """What a look-up found. Made by :func:`happened`, :func:`did_not_happen` and :func:`unknown`."""

    finding: Literal["happened", "did_not_happen", "unknown"]
    value: Any = None
    reference: str | None = None
    evidence: Any = None
    job_status: JobStatus | None = None


def happened(value: Any = None, reference: str | None = None) -> Answer:
    """It took effect. ``value``: the result to record (None where there is none); ``reference``: the receiver's id."""
    return Answer("happened", value=value, reference=reference)


def did_not_happen(evidence: Any = None, *, job_status: JobStatus | None = None) -> Answer:
    """It had no effect. ``evidence``: what shows it, kept on the record.

    For a tool that can answer :class:`Accepted`, absence is no evidence: give ``job_status``, what the receiver says
    about the job itself.
    """
    return Answer("did_not_happen", evidence=evidence, job_status=job_status)


def unknown(evidence: Any = None) -> Answer:
    """The look-up could not tell. A refusal or an error of the look-up is this, too."""
    return Answer("unknown", evidence=evidence)
