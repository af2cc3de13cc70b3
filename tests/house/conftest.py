"""Fixtures of the tests of the house."""

from tests.crash.fixtures import start, store_url

__all__ = ["start", "store_url"]
