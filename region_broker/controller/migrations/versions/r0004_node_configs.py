"""What is set of a node's configuration while it runs is kept: by node, and for all of them (KIP-226)."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, without a row: every key is as the configuration file says."""
    op.create_table(
        "node_configs",
        sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("configs", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Forget what was set: the configuration files count alone."""
    op.drop_table("node_configs")
