"""The leaders of a region's partitions may be spread over its nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, without a row: one node leads all logs."""
    op.create_table(
        "spread",
        sa.Column("domain", sa.String, primary_key=True),
        sa.Column("preferred", sa.LargeBinary, nullable=False),
        sa.Column("groups", sa.LargeBinary, nullable=False),
        sa.Column("topics", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("spread")
