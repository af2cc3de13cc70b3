"""The options that commands about runs share."""

from __future__ import annotations

from typing import Annotated

import typer

RunId = Annotated[str, typer.Argument(metavar="ID", help="The id of the run.", show_default=False)]

StartKey = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Names this start: the same again starts nothing.", show_default=False),
]

AgentVersion = Annotated[
    str | None,
    typer.Option("--agent-version", metavar="DIGEST", help="A version of the agent, or the beginning of it."),
]
