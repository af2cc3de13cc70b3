"""Fixtures that every folder may use."""

pytest_plugins = [
    "tests.support.postgres",
    "tests.support.receiver",
    "tests.support.houses",
    "tests.support.aimock",
    "tests.support.runs",
    "tests.support.temporal",
]
