"""What is stored is the image after an entry of the quorum's log: it is kept after which one."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, without a row: the log begins with what is stored here."""
    op.create_table(
        "quorum_position",
        sa.Column("incarnation", sa.String, primary_key=True),
        sa.Column("node_id", sa.Integer, nullable=False),
        sa.Column("applied_index", sa.BigInteger, nullable=False),
        sa.Column("applied_term", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Forget the log: what is stored is all there is."""
    op.drop_table("quorum_position")
