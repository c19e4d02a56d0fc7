"""A mirror region's nodes copy partitions of a topic that its readers do not know of yet."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column: no topic has such partitions."""
    copied_count = sa.Column("copied_count", sa.Integer, nullable=False, server_default="0")
    op.add_column("topics", copied_count)


def downgrade() -> None:
    """Forget them: whoever leads opens them anew."""
    op.drop_column("topics", "copied_count")
