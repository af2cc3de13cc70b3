"""Fixtures of the tests of doubt."""

from tests.crash.fixtures import start, store_url

__all__ = ["start", "store_url"]
