"""``tollhouse.yaml``: agents as files. Read by the command line and by ``serve`` before anything else is opened.

Reading happens in two steps, since a file names the modules that its tools are in: :func:`draft` gives what the text
says, with its mistakes noted; :meth:`Draft.proved`, once the tools are loaded, judges what it means. :func:`read_file`
is both. A file is either right as a whole or refused as a whole, with everything that is wrong in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path as FilePath
from typing import Any
from urllib.parse import quote

from tollhouse.errors import AgentFileInvalid, Mistake, TollhouseError
from tollhouse.models.book import ModelBook
from tollhouse.models.provider import Endpoint
from tollhouse.runs.agent_checks import KnownModel, Names, known_provider, mistakes_of_meaning, mistakes_of_scripts
from tollhouse.runs.agent_schema import mistakes_of_shape
from tollhouse.runs.agents import Agent, AgentApproval, Limits, Verifier
from tollhouse.runs.yaml_reader import MAX_BYTES, MAX_MISTAKES, Document, Path, read, words_of

MAX_INSTRUCTIONS_BYTES = 256_000


@dataclass(frozen=True, slots=True)
class AgentsFile:
    """What a file says.

    ``store`` None: it names none. ``tools``: sources as ``--tools`` takes them. ``scripts``: scripted models as they
    were written. ``defaults``: as written; they are in the agents already. Relative paths in ``store`` and ``tools``
    are of the file's folder and were made whole.
    """

    path: FilePath
    store: str | None = None
    tools: tuple[str, ...] = ()
    agents: Mapping[str, Agent] = field(default_factory=dict)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    scripts: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def book(self, *, environ: Mapping[str, str] | None = None) -> ModelBook:
        """The models that its agents may ask: providers, the file's endpoints and scripts, and scripts in files beside
        it. ``environ`` as :class:`~tollhouse.models.book.ModelBook` takes it. To be closed by the caller."""
        return ModelBook(endpoints=self.endpoints, scripts=self.scripts, base=self.path.parent, environ=environ)


@dataclass(frozen=True, slots=True)
class Draft:
    """A file as it was read, right or not. ``file``: what is right of it; ``left_out``: agents' fields that are not."""

    file: AgentsFile
    document: Document
    mistakes: tuple[Mistake, ...]
    left_out: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def proved(self, tools: Collection[str] | None = None, known_model: KnownModel | None = None) -> AgentsFile:
        """The file, proved.

        ``tools``: the names there are; None: those of the agents are taken on trust. ``known_model``: says what is
        wrong with a model that is none of the file's own; None: whether its provider exists. Whether keys and packages
        are at hand is not asked: a file is proved where it is written. Raises
        :class:`~tollhouse.errors.AgentFileInvalid` with every mistake, or the first hundred.
        """
        found = list(self.mistakes)
        if self.document.places:
            names = Names(
                self.file.agents,
                self._written("agents"),
                self._written("endpoints"),
                self._written("scripts"),
                self.file.path.parent,
                tools,
                self.left_out,
                known_model or known_provider,
            )
            found += mistakes_of_scripts(self.document, self.file.scripts)
            found += mistakes_of_meaning(self.document, names)
        if found:
            in_order = tuple(sorted(dict.fromkeys(found), key=lambda mistake: (mistake.line, mistake.column)))
            raise AgentFileInvalid.of(shown(self.file.path), in_order[:MAX_MISTAKES])
        return self.file

    def _written(self, part: str) -> Collection[str]:
        """The names in a part of the file, right or not: nobody is told that there is none of a name that is there."""
        named = self.document.value.get(part) if isinstance(self.document.value, Mapping) else None
        return named if isinstance(named, Mapping) else ()


def read_file(
    path: str | FilePath, *, tools: Collection[str] | None = None, known_model: KnownModel | None = None
) -> AgentsFile:
    """The agents' file at ``path``, proved; see :meth:`Draft.proved`."""
    return draft(path).proved(tools, known_model)


def draft(path: str | FilePath) -> Draft:
    """What the file at ``path`` says, its mistakes of shape noted.

    Raises :class:`~tollhouse.errors.AgentFileInvalid` where there is no such file,
    :class:`~tollhouse.errors.ExtraMissing` where the packages for it are not installed.
    """
    place = FilePath(path)
    document = read(_bytes_of(place))
    if not isinstance(document.value, Mapping):
        return Draft(AgentsFile(place), document, document.mistakes or tuple(mistakes_of_shape(document)))
    mistakes = [*document.mistakes, *mistakes_of_shape(document)]
    builder = _Builder(place, document, mistakes)
    return Draft(builder.file(), document, tuple(mistakes), builder.left_out)


def shown(path: FilePath) -> str:
    """The path as a user would type it here."""
    here = FilePath.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _bytes_of(path: FilePath) -> bytes:
    try:
        with path.open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        cause = f"{shown(path)} cannot be read: {error.strerror or error}."
        raise AgentFileInvalid(cause, file=shown(path), remedy="Name a file with --file PATH.") from None


class _Builder:
    """Makes the values of a file out of the parts of it whose shape is right; notes what it finds missing."""

    def __init__(self, path: FilePath, document: Document, mistakes: list[Mistake]) -> None:
        self._path, self._document, self._mistakes = path, document, mistakes
        self._wrong = {mistake.path for mistake in mistakes}
        self._raw: Mapping[str, Any] = document.value
        self._defaults = self._sound_fields("defaults", self._raw.get("defaults"))
        self.left_out: dict[str, frozenset[str]] = {}

    def file(self) -> AgentsFile:
        store = self._sound("store", None)
        return AgentsFile(
            self._path,
            None if store is None else self._store(store),
            tuple(self._source(source) for source in self._sound("tools", [])),
            dict(self._agents()),
            dict(self._endpoints()),
            dict(self._members("scripts")),
            self._defaults,
        )

    def _agents(self) -> Iterator[tuple[str, Agent]]:
        """Every agent with what is right of it, so that the rest of it is judged at once too."""
        written = self._raw.get("agents")
        for name, raw in written.items() if isinstance(written, Mapping) else ():
            if isinstance(raw, Mapping) and f"agents.{name}" not in self._wrong:
                sound = self._sound_fields(f"agents.{name}", raw)
                self.left_out[name] = frozenset(raw) - frozenset(sound)
                yield name, self._agent(name, {**self._defaults, **sound})

    def _endpoints(self) -> Iterator[tuple[str, Endpoint]]:
        for name, raw in self._members("endpoints"):
            try:
                yield name, Endpoint(**raw)
            except (TollhouseError, ValueError):
                cause, remedy = "The base_url is no URL.", "Write it as https://host/path, without a user or password."
                self._note(("endpoints", name, "base_url"), cause, remedy)

    def _sound_fields(self, path: str, raw: Any) -> dict[str, Any]:
        fields = raw.items() if isinstance(raw, Mapping) and path not in self._wrong else ()
        return {name: value for name, value in fields if not self._is_wrong(f"{path}.{name}")}

    def _sound(self, name: str, default: Any) -> Any:
        """A part of the file; the default where it is absent or its shape is wrong."""
        return self._raw[name] if name in self._raw and not self._is_wrong(name) else default

    def _members(self, part: str) -> list[tuple[str, Any]]:
        named = self._raw.get(part)
        if part in self._wrong or not isinstance(named, Mapping):
            return []
        return [(name, raw) for name, raw in named.items() if not self._is_wrong(f"{part}.{name}")]

    def _is_wrong(self, path: str) -> bool:
        return any(wrong == path or wrong.startswith((f"{path}.", f"{path}[")) for wrong in self._wrong)

    def _source(self, source: str) -> str:
        place = source.partition(":")[0]
        folder = self._folder
        return source if folder is None or not place.endswith(".py") else str(folder / source)

    def _store(self, url: str) -> str:
        name = url.removeprefix("sqlite:///")
        if name == url or name.startswith(("/", ":memory:", "?")):
            return url
        folder = self._folder
        return url if folder is None else f"sqlite:///{quote(str(folder))}/{name}"

    @property
    def _folder(self) -> FilePath | None:
        """The folder that relative paths are of; None: the current one, of which they are anyway."""
        folder = self._path.parent
        return None if folder in (FilePath(), FilePath.cwd()) else folder.absolute()

    def _agent(self, name: str, raw: Mapping[str, Any]) -> Agent:
        given: dict[str, Any] = {part: raw[part] for part in _AS_WRITTEN if part in raw}
        given |= {part: tuple(raw[part]) for part in ("fallback", "tools", "agents") if part in raw}
        if isinstance(asked := raw.get("questions"), Mapping) and "expires" in asked:
            given["question_expires_s"] = seconds(asked["expires"])
        return Agent(
            name=name,
            model=raw.get("model", ""),
            instructions=self._instructions(name, raw),
            model_settings=self._with_defaults("model_settings", raw),
            limits=_limits(self._with_defaults("limits", raw)),
            verifier=Verifier(**raw["verifier"]) if "verifier" in raw else None,
            approvals={tool: _approval(asked) for tool, asked in raw.get("approvals", {}).items()},
            output_schema=raw.get("output"),
            questions=raw.get("questions", False) is not False,
            **given,
        )

    def _with_defaults(self, part: str, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A mapping of which an agent may give single members."""
        return {**self._defaults.get(part, {}), **raw.get(part, {})}

    def _instructions(self, name: str, raw: Mapping[str, Any]) -> str:
        if "instructions_file" not in raw:
            return str(raw.get("instructions", ""))
        path: Path = ("agents", name, "instructions_file")
        if "instructions" in raw:
            self._note(path, "The instructions are given twice.", "Keep one of the two.")
        file = (self._path.parent / raw["instructions_file"]).resolve()
        if not file.is_relative_to(self._path.parent.resolve()):
            remedy = "Name a file in the folder of the agents' file, or below it."
            self._note(path, "The instructions are outside of the file's folder.", remedy)
            return ""
        try:
            return _text_of(file)
        except ValueError as error:
            self._note(path, str(error), f"Name a UTF-8 text file of at most {MAX_INSTRUCTIONS_BYTES:,} bytes.")
            return ""

    def _note(self, path: Path, cause: str, remedy: str) -> None:
        line, column = self._document.place(path)
        self._mistakes.append(Mistake(line, column, words_of(path), cause, remedy))


def _text_of(file: FilePath) -> str:
    """The text of a file of instructions. Raises :class:`ValueError` with the cause."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_INSTRUCTIONS_BYTES + 1)
    except OSError as error:
        raise ValueError(f"The file of instructions cannot be read: {error.strerror or error}.") from None
    if len(text) > MAX_INSTRUCTIONS_BYTES:
        raise ValueError("The file of instructions is too long.")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("The file of instructions is no UTF-8 text.") from None


_AS_WRITTEN = ("description", "on_in_doubt", "on_tool_error", "output_repairs", "timers")
_UNITS: Mapping[str, float] = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds(written: str | float) -> float:
    """A length of time as the file writes it (``30m``), in seconds."""
    if isinstance(written, str):
        return float(written[:-1]) * _UNITS[written[-1]]
    return float(written)


def _limits(raw: Mapping[str, Any]) -> Limits:
    known: dict[str, Any] = {name: _whole_number(raw[name]) for name in ("turns", "calls", "tokens") if name in raw}
    cost, wall = raw.get("cost"), raw.get("wall")
    return Limits(
        **known,
        cost=None if cost is None else Decimal(str(cost)),
        wall_s=None if wall is None else seconds(wall),
    )


def _whole_number(value: float | None) -> int | None:
    """JSON Schema takes 5.0 for a whole number, as JSON does."""
    return None if value is None else int(value)


def _approval(asked: bool | Mapping[str, Any]) -> AgentApproval:
    if isinstance(asked, bool):
        return AgentApproval()
    given: dict[str, Any] = {}
    if "quorum" in asked:
        given["quorum"] = int(asked["quorum"])
    if "approvers" in asked:
        given["approvers"] = tuple(asked["approvers"])
    if "expires" in asked:
        given["expires_s"] = seconds(asked["expires"])
    return AgentApproval(**given)
