"""What is remembered of folders, beyond the nodes that are registered: which of them an operator removed, and how often they were started."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, without a row: nothing was remembered."""
    op.create_table(
        "folders",
        sa.Column("incarnation", sa.String, primary_key=True),
        sa.Column("node_id", sa.Integer, nullable=False),
        sa.Column("since_version", sa.BigInteger, nullable=False),
        sa.Column("removed", sa.Integer, nullable=False),
        sa.Column("last_start", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("folders")
