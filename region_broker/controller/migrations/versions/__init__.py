"""One file per schema revision, never changed once released. Begin in `r0001_first`. May import Alembic alone."""
