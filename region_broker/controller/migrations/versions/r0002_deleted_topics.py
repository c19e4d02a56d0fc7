"""Deleted topics are kept by id: a mirror removes only what a deletion names (rule T34)."""

import sqlalchemy as sa
from alembic import op

from idempotency import fencing

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, and note up to which leader epoch topics may have been deleted that are not in it."""
    op.create_table(
        "deleted_topics",
        sa.Column("topic_id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("partition_count", sa.Integer, nullable=False),
        sa.Column("domain", sa.String, nullable=False),
        sa.Column("configs", sa.LargeBinary, nullable=False),
        sa.Column("metadata_version", sa.BigInteger, nullable=False),
        sa.Column("deleted_wall_ms", sa.BigInteger, nullable=False),
    )
    connection = op.get_bind()
    region_epoch = connection.execute(sa.text("SELECT max(region_epoch) FROM domains")).scalar()
    if not region_epoch:
        return  # a folder without history has deleted nothing
    last = connection.execute(
        sa.text("SELECT value FROM counters WHERE name = 'last_leader_epoch'")
    ).scalar()
    if last is None or fencing.region_epoch_of(last) != region_epoch:
        # Another region acts, or no leader epoch was counted: any of this region epoch may be one of that time.
        last = int(fencing.leader_epoch(region_epoch, fencing.LEADER_COUNTER_MAX))
    connection.execute(
        sa.text(
            "INSERT OR REPLACE INTO counters (name, value) VALUES ('deletions_unknown_to', :last)"
        ),
        {"last": last},
    )


def downgrade() -> None:
    """Forget which topics were deleted: a mirror keeps what it has of them."""
    op.drop_table("deleted_topics")
    op.execute("DELETE FROM counters WHERE name = 'deletions_unknown_to'")
