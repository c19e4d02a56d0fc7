"""Deleted topics are kept by id: a mirror removes only what a deletion names (rule T34)."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
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


def downgrade() -> None:
    """Forget which topics were deleted: a mirror keeps what it has of them."""
    op.drop_table("deleted_topics")
