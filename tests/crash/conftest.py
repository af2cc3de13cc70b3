"""Fixtures of the tests that crash processes."""

from tests.crash.fixtures import start, store_url

__all__ = ["start", "store_url"]
