"""Fixtures of the tests that crash processes."""

from tests.crash.fixtures import start

__all__ = ["start"]
