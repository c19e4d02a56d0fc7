"""Schema migrations of the metadata database, in Alembic's shape: `env` is what Alembic runs.

Begin in `versions/`. May import Alembic and SQLAlchemy alone: a revision says what was, so no module of today counts in it.
"""
