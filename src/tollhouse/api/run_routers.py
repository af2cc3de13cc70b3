"""Every route about runs, for an application that has runs."""

from __future__ import annotations

from fastapi import APIRouter

from tollhouse.api import ag_ui_input, agents, run_proof, runs, streams

ROUTERS: tuple[APIRouter, ...] = (runs.router, streams.router, ag_ui_input.router, agents.router, run_proof.router)
