"""Statements on ``owners``.

A departure locks its owner's row ``FOR KEY SHARE``, which lets renewals pass; whoever ends an owner locks it ``FOR
UPDATE``. So no departure is committed after its owner's end: either it comes first and the sweeper waits for it, or it
looks at the row again and finds the end.
"""

from __future__ import annotations

from tollhouse.stores.postgres.statements.meta import NOW, RESTORED, TICK

_COLUMNS = "tenant, id, host, pid, pid_started, label, lease_until_us, started_at_us, ended_at_us, proven_dead"

# Conditions on tenant and owner are put in. The end is asked for in a way that no partial index answers: the plan of an
# empty table would walk that index, with an entry for every renewal, instead of the primary key.
LIVE = (
    "SELECT tenant, id FROM @owners WHERE tenant {tenant} AND id {owner} AND coalesce(ended_at_us, 0) = 0 FOR KEY SHARE"
)

IS_LIVE = "SELECT EXISTS (SELECT FROM @owners WHERE tenant = $1 AND id = $2 AND ended_at_us IS NULL) AS live"

GET = f"SELECT {_COLUMNS} FROM @owners WHERE tenant = $1 AND id = $2"

GET_ENDED = (
    f"SELECT {_COLUMNS} FROM @owners"
    " WHERE tenant = $1 AND id = ANY ($2::text[]) AND ended_at_us IS NOT NULL ORDER BY id"
)

# A registration that is repeated finds its own row.
REGISTER = (
    f"WITH now AS ({TICK}), kept AS ("
    f"INSERT INTO @owners AS o ({_COLUMNS})"
    " SELECT $1, $2, $3, $4::bigint, $5, $6, now.now_us + $7::bigint, now.now_us, NULL, false FROM now"
    " ON CONFLICT (tenant, id) DO UPDATE SET lease_until_us = EXCLUDED.lease_until_us WHERE o.ended_at_us IS NULL"
    " RETURNING o.lease_until_us)"
    f" SELECT now.now_us, kept.lease_until_us, ({RESTORED}) AS restored FROM now LEFT JOIN kept ON true"
)

RENEW = (
    f"WITH now AS ({TICK}), kept AS ("
    "UPDATE @owners o SET lease_until_us = now.now_us + $3::bigint FROM now"
    " WHERE o.tenant = $1 AND o.id = $2 AND o.ended_at_us IS NULL RETURNING o.lease_until_us)"
    f" SELECT now.now_us, kept.lease_until_us, ({RESTORED}) AS restored FROM now LEFT JOIN kept ON true"
)

_END = (
    f"WITH now AS ({TICK}), gone AS MATERIALIZED (SELECT id FROM @owners, now WHERE tenant = $1 AND {{which}}"
    " FOR UPDATE OF owners)"
    " UPDATE @owners o SET ended_at_us = coalesce(o.ended_at_us, now.now_us){also} FROM gone, now"
    " WHERE o.tenant = $1 AND o.id = gone.id AND {still}"
)

END = _END.format(which="id = $2 AND ended_at_us IS NULL", also="", still="o.ended_at_us IS NULL")

END_DEAD = _END.format(which="id = $2", also=", proven_dead = true", still="true")

# The judgement has a time of its own: repeated after an outage it would end owners who had no way to renew.
END_EXPIRED = _END.format(
    which="ended_at_us IS NULL AND lease_until_us < now.now_us AND now.now_us <= coalesce($2::bigint, now.now_us)",
    also="",
    still="o.ended_at_us IS NULL AND o.lease_until_us < now.now_us",
)

# Asked first, as a sweep that finds nothing should write nothing.
ANY_EXPIRED = (
    f"SELECT EXISTS (SELECT FROM @owners WHERE tenant = $1 AND ended_at_us IS NULL AND lease_until_us < ({NOW}))"
    " AS found"
)
