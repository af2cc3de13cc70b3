"""How each type is encoded, by example: the table behind the docs' page on arguments and results.

The docs build renders it, and the tests evaluate every row, so it cannot go stale. Nothing else imports it.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Encoding(NamedTuple):
    """A row of :data:`ENCODINGS`: a type, and how an example of it is written, as JSON.

    ``argument`` None: refused in arguments. ``result`` None: has no lossless form. ``comes_back_as`` is what
    decoding a result gives where that is not an equal value of the same type; the tool's result type rebuilds it.
    """

    type: str
    example: str
    argument: str | None
    result: str | None
    comes_back_as: str | None = None
    note: str = ""


ENCODINGS: Final = (
    Encoding("None", "None", "null", "null"),
    Encoding("bool", "True", "true", "true"),
    Encoding("int", "2**70", "1180591620717411303424", "1180591620717411303424", note="Of any size."),
    Encoding("float", "2.5", "2.5", "2.5"),
    Encoding("float without a fraction", "3.0", "3", "3.0", note="In arguments 3 and 3.0 are the same, -0.0 is 0."),
    Encoding("float, not finite", "float('inf')", None, '{"$float":"inf"}', note="NaN too."),
    Encoding("str", "'caf\u00e9'", '"caf\u00e9"', '"caf\\u00e9"'),
    Encoding("str with a lone surrogate", "'\\ud800'", None, '"\\ud800"', note="It is not text."),
    Encoding("list", "[1, [2]]", "[1,[2]]", "[1,[2]]", note="A deque too, and subclasses."),
    Encoding("tuple", "(1, 2)", "[1,2]", '{"$tuple":[1,2]}', note="A named tuple too."),
    Encoding("set", "{2, 1}", "[1,2]", '{"$set":[1,2]}', note="Sorted by the encodings of its members."),
    Encoding("frozenset", "frozenset({2, 1})", "[1,2]", '{"$frozenset":[1,2]}'),
    Encoding("dict", "{'b': 1, 'a': 2}", '{"a":2,"b":1}', '{"b":1,"a":2}', note="A mapping of another type too."),
    Encoding("dict with a key in $", "{'$ref': 1}", '{"$$ref":1}', '{"$$ref":1}'),
    Encoding("dict with keys of other types", "{(1, 2): 'x'}", None, '{"$dict":[[{"$tuple":[1,2]},"x"]]}'),
    Encoding("bytes", "b'hi'", '{"$bytes":"aGk="}', '{"$bytes":"aGk="}'),
    Encoding("bytearray", "bytearray(b'hi')", '{"$bytes":"aGk="}', '{"$bytearray":"aGk="}'),
    Encoding("complex", "1+2j", None, '{"$complex":["1.0","2.0"]}'),
    Encoding("range", "range(1, 9, 2)", None, '{"$range":[1,9,2]}'),
    Encoding("decimal.Decimal", "Decimal('2.50')", '"2.50"', '{"$decimal":"2.50"}', note="Its scale is kept."),
    Encoding("decimal.Decimal, not finite", "Decimal('-Infinity')", None, '{"$decimal":"-Infinity"}'),
    Encoding("datetime.date", "date(2026, 11, 5)", '"2026-11-05"', '{"$date":"2026-11-05"}'),
    Encoding("datetime.time", "time(9, 30)", '"09:30:00"', '{"$time":"09:30:00"}'),
    Encoding(
        "datetime.datetime",
        "datetime(2026, 11, 5, 9, 30, tzinfo=UTC)",
        '"2026-11-05T09:30:00+00:00"',
        '{"$datetime":"2026-11-05T09:30:00+00:00"}',
        note="The offset is kept as given; without a zone there is none.",
    ),
    Encoding(
        "datetime.datetime in a named zone",
        "datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo('Europe/Berlin'), fold=1)",
        '"2026-10-25T02:30:00+01:00"',
        '{"$datetime":["2026-10-25T02:30:00+01:00","Europe/Berlin",1]}',
    ),
    Encoding("datetime.timedelta", "timedelta(hours=36)", '"P1DT43200S"', '{"$timedelta":"P1DT43200S"}'),
    Encoding(
        "uuid.UUID",
        "UUID(int=7)",
        '"00000000-0000-0000-0000-000000000007"',
        '{"$uuid":"00000000-0000-0000-0000-000000000007"}',
    ),
    Encoding("pathlib.Path", "Path('a/b')", '"a/b"', '{"$path":"a/b"}', note="A pure path too, marked by its type."),
    Encoding(
        "ipaddress.IPv4Address",
        "IPv4Address('192.0.2.1')",
        '"192.0.2.1"',
        '{"$ipv4address":"192.0.2.1"}',
        note="IPv6, networks and interfaces too.",
    ),
    Encoding("pydantic.AnyUrl", "AnyUrl('https://a.example/')", '"https://a.example/"', '"https://a.example/"', "str"),
    Encoding("enum.Enum", "Colour.RED", '"red"', '"red"', "str", "Its value."),
    Encoding("dataclass", "Point(1, 2)", '{"x":1,"y":2}', '{"x":1,"y":2}', "dict"),
    Encoding(
        "pydantic.BaseModel",
        "Order(id=7)",
        '{"id":7}',
        '{"id":7}',
        "dict",
        "Its fields as they are, in arguments by alias; serialisers are not applied, exclude=True is left out.",
    ),
    Encoding("pydantic.SecretStr", "SecretStr('x')", None, None, note="Secrets are resolved by name, never stored."),
    Encoding("anything else", "object()", None, None),
)
"""How each type is encoded in arguments and in results. ``example`` is a Python expression."""
