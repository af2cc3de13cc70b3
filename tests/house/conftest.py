"""Fixtures of the tests of the house."""

from tests.crash.fixtures import start

__all__ = ["start"]
