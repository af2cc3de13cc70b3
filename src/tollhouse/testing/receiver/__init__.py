"""A billing service that misbehaves on demand and counts what really took effect.

Tests, the demo and the drill run it in a process of its own, so that killing the sender never touches the
witness. The whole package uses the standard library and nothing of Tollhouse: it starts fast, and it cannot
share a mistake with what it judges.
"""

from .book import Effect, SeenRequest, read_effects
from .client import Receiver
from .faults import Fault

__all__ = ["Effect", "Fault", "Receiver", "SeenRequest", "read_effects"]
