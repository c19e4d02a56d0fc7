"""The first schema: cluster, counters, topics, regions, domains."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table("cluster", sa.Column("cluster_id", sa.String, primary_key=True))
    op.create_table(
        "counters",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "topics",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("topic_id", sa.String, nullable=False, unique=True),
        sa.Column("partition_count", sa.Integer, nullable=False),
        sa.Column("domain", sa.String, nullable=False),
        sa.Column("internal", sa.Integer, nullable=False),
        sa.Column("configs", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "regions",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("ordinal", sa.Integer, nullable=False, unique=True),
        sa.Column("node_id", sa.Integer, nullable=False),
        sa.Column("endpoints", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "domains",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("acting_region", sa.String, nullable=False),
        sa.Column("region_epoch", sa.Integer, nullable=False),
        sa.Column("shard_count", sa.Integer, nullable=False),
        sa.Column("lineage", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables: the folder is empty of metadata afterwards."""
    for table in ("domains", "regions", "topics", "counters", "cluster"):
        op.drop_table(table)
