"""A region has several nodes, one of which leads its logs: who is registered, who leads, who may lead next."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, without a row: nobody has registered, and nobody was elected. No birth is named."""
    op.add_column("domains", sa.Column("birth", sa.LargeBinary))
    op.create_table(
        "nodes",
        sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("incarnation", sa.String, nullable=False, unique=True),
        sa.Column("life", sa.String, nullable=False),
        sa.Column("endpoints", sa.LargeBinary, nullable=False),
        sa.Column("rack", sa.String, nullable=False),
        sa.Column("feature_level", sa.Integer, nullable=False),
        sa.Column("fenced", sa.Integer, nullable=False),
        sa.Column("draining", sa.Integer, nullable=False),
        sa.Column("former", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "leadership",
        sa.Column("led", sa.String, primary_key=True),
        sa.Column("leader", sa.LargeBinary, nullable=False),
        sa.Column("leader_epoch", sa.BigInteger, nullable=False),
        sa.Column("in_sync", sa.LargeBinary, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("unclean", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Forget nodes and leader: what is left is a region of one node."""
    op.drop_column("domains", "birth")
    op.drop_table("leadership")
    op.drop_table("nodes")
