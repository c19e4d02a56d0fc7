"""A region of several nodes knows itself by its metadata: its history, its starts, and the state of its failover."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, without a row: the first leader writes it."""
    op.create_table(
        "region_folder",
        sa.Column("folder_id", sa.String, primary_key=True),
        sa.Column("identity", sa.LargeBinary, nullable=False),
        sa.Column("failover_number", sa.BigInteger, nullable=False),
        sa.Column("failover", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("region_folder")
