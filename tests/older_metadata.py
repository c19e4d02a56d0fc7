"""Metadata as older versions of Tidemark wrote them."""

import sqlite3
from contextlib import closing
from pathlib import Path


def forget_deletions(database_file: Path) -> None:
    """Let the metadata of a dead node be as a version wrote it that kept no deletions."""
    with closing(sqlite3.connect(database_file)) as database, database:
        database.execute("DROP TABLE deleted_topics")
        database.execute("DELETE FROM counters WHERE name = 'deletions_unknown_to'")
        database.execute("UPDATE alembic_version SET version_num = '0001'")
