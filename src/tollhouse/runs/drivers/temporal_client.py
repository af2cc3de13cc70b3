"""The connection to a Temporal server: where it is, how it logs, and what is said when it is away."""

from __future__ import annotations

import asyncio
import logging
from functools import cache

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from tollhouse.errors import DriverUnavailable

CONNECT_S = 10.0
ASK_S = 1.0
"""How long a question to the server may take whose only point is whether it answers."""


async def connected(address: str, namespace: str | None) -> Client:
    """A client of the server at ``address``, in a namespace that exists there.

    The environment says the rest, in Temporal's own names: ``TEMPORAL_NAMESPACE``, ``TEMPORAL_API_KEY`` and
    ``TEMPORAL_TLS_…``. Raises :class:`DriverUnavailable`.
    """
    try:
        settings = ClientConfig.load_client_connect_config(disable_file=True)
    except (RuntimeError, ValueError) as error:
        raise DriverUnavailable(f"Temporal's environment variables are not right: {error}.") from error
    settings["target_host"] = address
    settings["namespace"] = namespace or settings.get("namespace", "default")
    try:
        async with asyncio.timeout(CONNECT_S):
            client = await Client.connect(**settings, runtime=_runtime())
            await _describe(client)
            return client
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise DriverUnavailable(f"No Temporal server answers at {address}.") from error
    except RPCError as error:
        raise _refused(address, settings["namespace"], error) from error


async def answers(client: Client) -> bool:
    """Whether the server answers now."""
    try:
        async with asyncio.timeout(ASK_S):
            await _describe(client)
    except (RPCError, TimeoutError):
        return False
    return True


async def _describe(client: Client) -> None:
    await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))


def _refused(address: str, namespace: str, error: RPCError) -> DriverUnavailable:
    match error.status:
        case RPCStatusCode.NOT_FOUND:
            what = f"The Temporal server at {address} has no namespace {namespace}."
            return DriverUnavailable(what, remedy="Create it, or name another with TEMPORAL_NAMESPACE.")
        case RPCStatusCode.UNAUTHENTICATED | RPCStatusCode.PERMISSION_DENIED:
            what = f"The Temporal server at {address} does not let this process in."
            return DriverUnavailable(what, remedy="See TEMPORAL_API_KEY and TEMPORAL_TLS_….")
    return DriverUnavailable(f"The Temporal server at {address} does not answer: {error.message}.")


@cache
def _runtime() -> Runtime:
    """Temporal's own threads, one set for a process; their log goes where the rest of the log does.

    Without a line for each request that is tried again: the driver says when the server is away.
    """
    log = LogForwardingConfig(logging.getLogger("tollhouse.temporal"), append_target_to_name=False)
    quiet = f"{TelemetryFilter(core_level='WARN', other_level='ERROR').formatted()},temporalio_client=ERROR"
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(quiet, forwarding=log)))
