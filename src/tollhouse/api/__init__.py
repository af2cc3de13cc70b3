"""The HTTP API: the same gate, decisions and readings as the SDK, for callers in any language.

``tollhouse serve`` makes it with :func:`tollhouse.api.app.create_app` and serves it with
:mod:`tollhouse.api.server`. It needs the extra ``server``; nothing outside this package imports it at start.
"""
