"""Every error Tollhouse raises, in one place, because a code is a promise.

Callers branch on :attr:`TollhouseError.code`; people read :attr:`cause` and :attr:`remedy`; an agent loop passes
:attr:`for_model` to its model. Codes are stable and never reused. The error reference in the docs is generated
from this module, so the class docstring, ``remedy`` and ``sent`` below are what a reader finds there.

Order of precedence when several mistakes meet in one call: the tool's name, the arguments' encoding, the key,
a call already recorded under that key, the arguments' types, gates that deny, gates that hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Sent = Literal["no", "maybe", "yes"]
"""Whether anything left the house: ``"no"`` is proof, ``"maybe"`` is doubt, ``"yes"`` is certain."""


class TollhouseError(Exception):
    """Base of every error raised on purpose.

    ``cause`` is one sentence saying what happened, ``remedy`` one saying what to do next. ``key`` is the call's key,
    or None when there is no call. Private detail (arguments, secrets) never appears in the text.
    """

    code: ClassVar[str] = "error"
    default_remedy: ClassVar[str] = "Read the cause; nothing else is known about this failure."
    default_sent: ClassVar[Sent] = "no"
    replayed: bool = False
    """Whether this is what was recorded of a call before: nothing was sent or billed now."""

    def __init__(
        self, cause: str, *, remedy: str | None = None, key: str | None = None, sent: Sent | None = None
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy or self.default_remedy
        self.key = key
        self.sent: Sent = sent or self.default_sent

    @property
    def for_model(self) -> str:
        """What a model should be told: the truth, and never "try again" for a doubt."""
        return f"{self.cause} {_WHAT_LEFT[self.sent]}"

    def as_dict(self) -> dict[str, str | None]:
        """The error as JSON surfaces show it (CLI ``--json``, problem documents)."""
        return {
            "code": self.code,
            "cause": self.cause,
            "remedy": self.remedy,
            "sent": self.sent,
            "key": self.key,
        }

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy} [{self.code}; sent: {self.sent}]"


_WHAT_LEFT: dict[Sent, str] = {
    "no": "Nothing was sent.",
    "maybe": "It may have taken effect. Do not call it again; verify first.",
    "yes": "It was sent.",
}


# -- what a call can end in ------------------------------------------------------------------------------------


class InDoubt(TollhouseError):
    """The call may have taken effect, and nobody knows yet."""

    code = "call_in_doubt"
    default_remedy = "Verify at the receiver and settle it: reconcile, or resolve it by name."
    default_sent = "maybe"

    @property
    def for_model(self) -> str:
        return (
            "The outcome of this call is unknown: it may have taken effect. Do not call it again. "
            "Verify by reading, or wait until a person settles it."
        )


class Held(TollhouseError):
    """The call waits for people; nothing was sent in this round."""

    code = "call_held"
    default_remedy = "Approve, edit or deny it; then call again with the same key."

    @property
    def for_model(self) -> str:
        return f"This call waits for a person's decision and is not sent before. {self.cause}"


class Refused(TollhouseError):
    """A gate or a person said no; nothing was sent in this round."""

    code = "call_refused"
    default_remedy = "Change what the gate objects to and use a new key, or have a named person retry this one."


class CallFailed(TollhouseError):
    """The call is known to have had no effect."""

    code = "call_failed"
    default_remedy = "Fix the cause; then use a new key, or have a named person retry this one."
    default_sent: ClassVar[Sent] = "yes"

    @property
    def for_model(self) -> str:
        return f"This call failed and had no effect. {self.cause}"


class CallNotSent(CallFailed):
    """Proof exists that no byte of this call left; it is ready to go again."""

    code = "call_not_sent"
    default_remedy = "Call again with the same key once the cause is gone; that is safe."
    default_sent = "no"

    @property
    def for_model(self) -> str:
        return f"Nothing was sent, so nothing happened. {self.cause}"


class CallInFlight(TollhouseError):
    """Another caller's attempt under this key is still out."""

    code = "call_in_flight"
    default_remedy = "Wait for it (house.wait), or read it later; a second send would be a second effect."
    default_sent = "maybe"

    @property
    def for_model(self) -> str:
        return "This very call is already under way. Do not call it again; its outcome will follow."


class CallConflict(TollhouseError):
    """The key already belongs to another tool or to other arguments."""

    code = "call_conflict"
    default_remedy = "Use a new key for a new call; a key names one intended use of a tool for ever."


class Contradicted(TollhouseError):
    """What was settled and what was found since disagree."""

    code = "call_contradicted"
    default_remedy = "A named person must overturn or uphold the settlement."
    default_sent = "yes"

    @property
    def for_model(self) -> str:
        return "The records about this call contradict each other; a person must decide. Do not call it again."


class Compensated(TollhouseError):
    """The call took effect and was undone by its own ledgered call."""

    code = "call_compensated"
    default_remedy = "Use a new key if the effect is wanted again."
    default_sent = "yes"


class ResultPurged(TollhouseError):
    """The call succeeded, but its recorded result was purged."""

    code = "result_purged"
    default_remedy = "Read the result at the receiver; the key stays taken and is never sent again."
    default_sent = "yes"


# -- mistakes in the request: nothing is stored, nothing leaves ---------------------------------------------------


class InvalidArguments(TollhouseError):
    """The arguments cannot be encoded, or are not what the tool's schema says."""

    code = "invalid_arguments"
    default_remedy = "Correct the field named and call again; the key was not used up."

    def __init__(
        self, cause: str, *, path: str | None = None, remedy: str | None = None, key: str | None = None
    ) -> None:
        super().__init__(cause, remedy=remedy, key=key)
        self.path = path


class InvalidKey(TollhouseError):
    """The key is missing or ill-formed."""

    code = "invalid_key"
    default_remedy = "Give 1 to 200 characters: letters, digits and . _ : @ -, starting with a letter or digit."


class InvalidSetting(TollhouseError):
    """A setting is out of bounds, or loosens what the contract promises."""

    code = "invalid_setting"
    default_remedy = "Correct the setting named; a setting may tighten a contract, never loosen it."


class UnknownTool(TollhouseError):
    """No tool of that name is registered here."""

    code = "unknown_tool"
    default_remedy = "Pass the tool to Tollhouse.open(tools=[...]) or name its module with --tools."


class UnknownCall(TollhouseError):
    """No call is recorded under that key."""

    code = "unknown_call"
    default_remedy = "Check the key and the tenant; `tollhouse calls list` shows what is recorded."


class UngatedCall(TollhouseError):
    """A decorated tool was called directly, around the gate."""

    code = "ungated_call"
    default_remedy = "Use house.call(tool, arguments, key=...); `tool.fn` is for unit tests."


class ContractError(TollhouseError):
    """A tool's contract contradicts itself; raised at import."""

    code = "contract_error"
    default_remedy = "Correct the field named in the decorator."

    def __init__(self, cause: str, *, field: str, remedy: str | None = None) -> None:
        super().__init__(cause, remedy=remedy)
        self.field = field


# -- decisions of people -----------------------------------------------------------------------------------------


class NotAllowed(TollhouseError):
    """The lifecycle forbids this step for a call in this state."""

    code = "not_allowed"
    default_remedy = "Look at the call (`tollhouse calls show`) and choose a step its state allows."


class DecisionConflict(TollhouseError):
    """Somebody else decided first, or the call changed since it was shown."""

    code = "decision_conflict"
    default_remedy = "Read the call again; decide anew only if the recorded decision is wrong."


class NotEntitled(TollhouseError):
    """This person may not take this decision (the requester approving their own call, a missing name)."""

    code = "not_entitled"
    default_remedy = "Have another named person decide."


# -- the store ---------------------------------------------------------------------------------------------------


class StoreUnavailable(TollhouseError):
    """The ledger could not be read or written: gone, locked, full or read-only."""

    code = "store_unavailable"
    default_remedy = "Restore the store; then use the same key again, which is safe."


class StoreFull(StoreUnavailable):
    """The ledger's disk or page limit is full."""

    code = "store_full"
    default_remedy = "Make room (disk, max_page_count); then use the same key again, which is safe."


class StoreReadOnly(StoreUnavailable):
    """The ledger cannot be written: a read-only file, mount or replica."""

    code = "store_read_only"
    default_remedy = "Point to a writable primary store; then use the same key again, which is safe."


class StoreLocked(StoreUnavailable):
    """Another process held the ledger's write lock for too long."""

    code = "store_locked"
    default_remedy = "Find the process that holds the store; then use the same key again, which is safe."


class StoreFenced(StoreUnavailable):
    """The ledger was moved to another store, or is being moved, so nothing may be written to it."""

    code = "store_fenced"
    default_remedy = "Use the ledger that it was moved to; `tollhouse db check` on this one names it."


class StoreNotDurable(TollhouseError):
    """The store could forget a departure after a power cut, so opening it was refused."""

    code = "store_not_durable"
    default_remedy = "Use a durable store, or pass volatile=True where losing the ledger is acceptable."


class StoreSchema(TollhouseError):
    """The store's schema is too old or too new for this release."""

    code = "store_schema"
    default_remedy = "Run `tollhouse db upgrade`, or install the release that wrote it."


class CopyRefused(TollhouseError):
    """A ledger cannot be copied, or a copy abandoned, as asked; nothing was changed by this command."""

    code = "copy_refused"
    default_remedy = "Copy into an empty store that no other copy has been begun into."


class CopyDiffers(TollhouseError):
    """What arrived in the other store is not what was sent; both ledgers stay fenced."""

    code = "copy_differs"
    default_remedy = "Empty the target and copy again, or go back with `tollhouse db copy --abandon`."


class StoreURLInvalid(TollhouseError):
    """The store's URL names no store that this installation knows."""

    code = "store_url_invalid"
    default_remedy = "Use sqlite:///path/to/file.db or postgresql://user@host/database."


class HouseClosed(TollhouseError):
    """The house was closed, or this handle crossed a fork."""

    code = "house_closed"
    default_remedy = "Open a house in this process: `async with Tollhouse.open(...)`."


# -- runs --------------------------------------------------------------------------------------------------------


class UnknownRun(TollhouseError):
    """No run is recorded under that id."""

    code = "unknown_run"
    default_remedy = "Check the id and the tenant; `tollhouse runs list` shows what is recorded."


class UnknownAgent(TollhouseError):
    """No agent of that name, or no such version of it, is known here."""

    code = "unknown_agent"
    default_remedy = "Name an agent of tollhouse.yaml; `tollhouse check` lists them."


class UnknownQuestion(TollhouseError):
    """The run has not asked that question."""

    code = "unknown_question"
    default_remedy = "Look at the run (`tollhouse runs show`): it lists the questions that are open."


class RunConflict(TollhouseError):
    """The key of this start already belongs to another start, or the run moved since it was shown."""

    code = "run_conflict"
    default_remedy = "Read the run again; use a new key for another start."


class ThreadBusy(TollhouseError):
    """The thread has a run that has not finished, and two at a time would lose one's messages."""

    code = "thread_busy"
    default_remedy = "Wait for that run, or cancel it; then start this one."


class RunNotAllowed(TollhouseError):
    """A run in this state does not allow this step."""

    code = "run_not_allowed"
    default_remedy = "Look at the run (`tollhouse runs show`) and choose a step its state allows."


class RunPurged(TollhouseError):
    """What was said in the run was purged; only how it ended, and when, is still recorded."""

    code = "run_purged"
    default_remedy = "Nothing brings it back: look at what is left (`tollhouse runs show`), or start a new run."


class DriverUnavailable(TollhouseError):
    """What drives the runs of this process cannot be reached: the Temporal server."""

    code = "driver_unavailable"
    default_remedy = "Start it, or name another with --temporal HOST:PORT; --driver local needs none."


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong in a file. ``line`` and ``column`` count from 1; ``path`` is the place inside it."""

    line: int
    column: int
    path: str
    cause: str
    remedy: str

    def at(self, file: str) -> str:
        """Place and cause, in the form that editors jump to."""
        return f"{file}:{self.line}:{self.column}: {self.cause}"


class AgentFileInvalid(TollhouseError):
    """An agents' file cannot be read, or says something that cannot hold.

    ``file``: as it was named. ``mistakes``: all that is wrong in it, in the order of its lines; the first is the
    error's own. Empty where the file itself could not be opened.
    """

    code = "agent_file_invalid"
    default_remedy = "Correct the line named, then run `tollhouse check`."

    def __init__(self, cause: str, *, file: str, mistakes: tuple[Mistake, ...] = (), remedy: str | None = None) -> None:
        super().__init__(cause, remedy=remedy)
        self.file, self.mistakes = file, mistakes

    @classmethod
    def of(cls, file: str, mistakes: tuple[Mistake, ...]) -> AgentFileInvalid:
        """The error of a file with mistakes in it, of which there is at least one."""
        more = f" ({len(mistakes) - 1} more in this file.)" if len(mistakes) > 1 else ""
        return cls(mistakes[0].at(file) + more, file=file, mistakes=mistakes, remedy=mistakes[0].remedy)

    @property
    def line(self) -> int | None:
        """The line of the first mistake."""
        return self.mistakes[0].line if self.mistakes else None

    @property
    def column(self) -> int | None:
        """Its column."""
        return self.mistakes[0].column if self.mistakes else None

    @property
    def path(self) -> str | None:
        """The place inside the file; None where the whole file is meant."""
        return (self.mistakes[0].path or None) if self.mistakes else None


class ProofInvalid(TollhouseError):
    """A proof is not what it claims: a record or a signature is missing, altered or forged."""

    code = "proof_invalid"
    default_remedy = "Trust nothing in it; ask for the proof again from the ledger itself."


# -- surfaces ----------------------------------------------------------------------------------------------------


class NotAuthenticated(TollhouseError):
    """The request carries no credential that is valid now."""

    code = "not_authenticated"
    default_remedy = "Send `Authorization: Bearer <key>`; `tollhouse keys create` makes one."


class NotAuthorized(TollhouseError):
    """The credential is valid but does not allow this."""

    code = "not_authorized"
    default_remedy = "Use a key with the scope that is named; `tollhouse keys create --scope` makes one."


class PreconditionFailed(TollhouseError):
    """What the caller was shown is not what stands there any more (If-Match)."""

    code = "precondition_failed"
    default_remedy = "Read it again and decide anew."


class RequestTooLarge(TollhouseError):
    """The body of a request is larger than the server takes."""

    code = "request_too_large"
    default_remedy = "Send less, or pass large bodies by reference."


class InvalidRequest(TollhouseError):
    """The request is not what the interface describes.

    ``path``: the member or parameter that is wrong; None where the whole request is.
    """

    code = "invalid_request"
    default_remedy = "Correct the field named; /openapi.json describes every request."

    def __init__(
        self, cause: str, *, path: str | None = None, remedy: str | None = None, key: str | None = None
    ) -> None:
        super().__init__(cause, remedy=remedy, key=key)
        self.path = path


class UnknownRoute(InvalidRequest):
    """The server has nothing at this path."""

    code = "unknown_route"
    default_remedy = "Correct the path; /openapi.json lists every one."


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not with this method."""

    code = "method_not_allowed"
    default_remedy = "Use a method that the header Allow names."


class UnsupportedMediaType(InvalidRequest):
    """The body is not sent as JSON."""

    code = "unsupported_media_type"
    default_remedy = "Send JSON, with the header Content-Type: application/json."


class RequestTimedOut(InvalidRequest):
    """The body of the request did not arrive in time."""

    code = "request_timed_out"
    default_remedy = "Send the whole body without pauses; nothing of this request was used."


class WrongHost(InvalidRequest):
    """The request is meant for another host, or a web page of another origin made it."""

    code = "wrong_host"
    default_remedy = "Address the server by a name that it was told to answer to."


class SigningKeyUnusable(TollhouseError):
    """The key that signs proofs cannot be read, or others can read it."""

    code = "signing_key_unusable"
    default_remedy = "Give the key back to this user alone, or move it away; a new one is made on the next start."


class ProofUnreadable(TollhouseError):
    """What should be verified is no proof, no public key or no file of anchors."""

    code = "proof_unreadable"
    default_remedy = "Name the file that `tollhouse runs proof` or `tollhouse calls proof` wrote."


class InvalidCursor(TollhouseError):
    """The cursor or event id belongs to something else, or lies beyond the end."""

    code = "invalid_cursor"
    default_remedy = "Begin without a cursor, or use the one that the last page named."


class ExtraMissing(TollhouseError):
    """This needs packages that the base install leaves out."""

    code = "extra_missing"
    default_remedy = "Install the extra named, such as pip install 'tollhouse[server]'."
