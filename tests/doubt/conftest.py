"""Fixtures of the tests of doubt."""

from tests.crash.fixtures import start

__all__ = ["start"]
