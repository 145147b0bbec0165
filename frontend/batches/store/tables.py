"""The tables of the file store.

A file's bytes are in pieces, so that nothing holds more than one of them. A batch has an owner, the frontend
that works on it, for as long as its lease is renewed; an answer belongs to a line of the input, once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

TABLES = sa.MetaData()
FILES = sa.Table(
    "splitserve_files",
    TABLES,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("created_s", sa.Double, nullable=False),
    sa.Column("expires_s", sa.BigInteger, nullable=False, index=True),
    sa.Column("purpose", sa.String(16), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("num_bytes", sa.BigInteger, nullable=False),
    sa.Column("is_complete", sa.Boolean, nullable=False),
)
PIECES = sa.Table(
    "splitserve_file_pieces",
    TABLES,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "id"], [FILES.c.tenant, FILES.c.id], ondelete="CASCADE"),
)
BATCHES = sa.Table(
    "splitserve_batches",
    TABLES,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("created_s", sa.Double, nullable=False),
    sa.Column("expires_s", sa.BigInteger, nullable=False, index=True),
    sa.Column("is_open", sa.Boolean, nullable=False, index=True),
    sa.Column("owner", sa.String(32), nullable=False, index=True),
    sa.Column("owned_until_s", sa.Double, nullable=False),
    # When somebody asked for its end, 0 for nobody.
    sa.Column("cancelling_s", sa.BigInteger, nullable=False),
    sa.Column("num_completed", sa.BigInteger, nullable=False),
    sa.Column("num_failed", sa.BigInteger, nullable=False),
    sa.Column("num_answer_bytes", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
ANSWERS = sa.Table(
    "splitserve_batch_answers",
    TABLES,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("failed", sa.Boolean, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "id"], [BATCHES.c.tenant, BATCHES.c.id], ondelete="CASCADE"),
)


class Key(NamedTuple):
    """Which file or batch: those of one tenant are nobody else's."""

    tenant: str
    id: str


def is_row(table: sa.Table, key: Key) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the condition of a row, or of the rows that belong to it."""
    return table.c.tenant == key.tenant, table.c.id == key.id


class Page(NamedTuple):
    """Which rows of a tenant a list shows.

    Attributes:
        limit: the most.
        after: id of the row before the first of them; "" to begin with the first.
        ascending: the oldest first.
    """

    limit: int
    after: str = ""
    ascending: bool = False


def page_query(table: sa.Table, tenant: str, now_s: float, page: Page) -> sa.Select[Any]:
    """Return the query for a page and one row more, all columns."""
    query = sa.select(table).where(table.c.tenant == tenant, table.c.expires_s > now_s)
    place = sa.tuple_(table.c.created_s, table.c.id)
    if page.after:
        found = sa.select(table.c.created_s).where(*is_row(table, Key(tenant, page.after)))
        after = sa.tuple_(found.scalar_subquery(), sa.literal(page.after))
        query = query.where(place > after if page.ascending else place < after)
    columns = (table.c.created_s, table.c.id)
    query = query.order_by(*(each if page.ascending else each.desc() for each in columns))
    return query.limit(page.limit + 1)
