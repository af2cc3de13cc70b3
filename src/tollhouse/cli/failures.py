"""What a command ends with: its exit code, and how an error is shown. Called by the root of the command line.

A user's mistake is never a traceback: every :class:`TollhouseError` is shown as code, cause, remedy and whether
anything was sent, on stderr or, with ``--json``, as the one document on stdout. Any other exception is a defect and
keeps its traceback.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar, Protocol, runtime_checkable

from tollhouse.cli.screen import Screen, drop
from tollhouse.errors import (
    AgentFileInvalid,
    CallInFlight,
    Contradicted,
    Held,
    InDoubt,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    StoreURLInvalid,
    TollhouseError,
    UnknownTool,
)
from tollhouse.gate.view import RecordedCall
from tollhouse.ledger.record import State

OK, FAILED, USAGE, IN_DOUBT = 0, 1, 2, 3
INTERRUPTED = 130

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What writing to a file fails with on a full disk; a ledger's full disk is an error of the store."""

_EXIT_CODES: dict[int, tuple[type[TollhouseError], ...]] = {
    IN_DOUBT: (InDoubt, Held, Contradicted, CallInFlight),
    USAGE: (InvalidKey, InvalidSetting, InvalidArguments, StoreURLInvalid, UnknownTool),
}


class UsageMistake(TollhouseError):
    """The command itself is not right: an option is missing, or names something that does not exist."""

    code: ClassVar[str] = "usage"
    default_remedy: ClassVar[str] = "Run the command with --help."


@runtime_checkable
class _ParserError(Protocol):
    """What the option parser raises, whichever release of it is installed."""

    exit_code: int

    def format_message(self) -> str: ...


def exit_code_of(error: TollhouseError) -> int:
    """The exit code that an error ends a command with."""
    if isinstance(error, UsageMistake):
        return USAGE
    return next((code for code, kinds in _EXIT_CODES.items() if isinstance(error, kinds)), FAILED)


def exit_code_for(*calls: RecordedCall) -> int:
    """The exit code of a command that did its work, from the calls that it shows."""
    waits = any(call.contradicted or call.state in (State.IN_DOUBT, State.HELD) for call in calls)
    return IN_DOUBT if waits else OK


def ending(command: Callable[[], Any], *, as_json: bool) -> int:
    """Run a command and return its exit code, its error shown."""
    try:
        code = command()
    except TollhouseError as error:
        show_error(error, as_json=as_json)
        return exit_code_of(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        drop(sys.stdout)
        return _show_unwritten(error)
    except Exception as error:
        if not isinstance(error, _ParserError):
            raise
        _show_parser_error(error, as_json=as_json)
        return error.exit_code
    return code if isinstance(code, int) else OK


def _show_unwritten(error: OSError) -> int:
    screen = Screen(as_json=False)
    screen.error(f"The output could not be written in full ({error.strerror}).", "output_not_written")
    screen.error_detail("remedy", "Make room. What the command did stands: look before you repeat it.")
    return FAILED


def show_error(error: TollhouseError, *, as_json: bool) -> None:
    """Say what went wrong, in full."""
    screen = Screen(as_json=as_json)
    if as_json:
        screen.document({"error": error_as_json(error)})
        return
    if isinstance(error, AgentFileInvalid) and error.mistakes:
        for mistake in error.mistakes:
            screen.error(mistake.at(error.file), error.code)
            screen.error_detail("remedy", mistake.remedy)
        return
    screen.error(error.cause, error.code)
    screen.error_detail("remedy", error.remedy)
    if not isinstance(error, UsageMistake):
        screen.error_detail("sent", error.sent)
    for name, value in _about(error).items():
        screen.error_detail(name, value)


def error_as_json(error: TollhouseError) -> dict[str, Any]:
    """The error as every JSON surface shows it, with the field or path it is about where it names one."""
    shown: dict[str, Any] = {**error.as_dict(), **_about(error)}
    if isinstance(error, AgentFileInvalid):
        shown |= {"file": error.file, "mistakes": [asdict(mistake) for mistake in error.mistakes]}
    return shown


def _about(error: TollhouseError) -> dict[str, str]:
    return {name: value for name in ("field", "path") if (value := getattr(error, name, None)) is not None}


def _show_parser_error(error: Any, *, as_json: bool) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":
        Screen(as_json=as_json).note(error.format_message())
        return
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tollhouse"
    cause = error.format_message()
    mistake = UsageMistake(cause if cause.endswith((".", "?")) else f"{cause}.", remedy=f"See `{command} --help`.")
    show_error(mistake, as_json=as_json)
