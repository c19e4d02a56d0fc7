"""Make the generated tables of the documentation anew: ``python -m tests.tidy.write_docs``.

Not here: the tables (`generated`).
"""

from tests.tidy.generated import generated_documents, renewed
from tests.tidy.tree import shown


def main() -> None:
    """Rewrite each document whose tables are stale, and say which."""
    for path in generated_documents():
        old = path.read_text(encoding="utf-8")
        new = renewed(old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print("written:", shown(path))


if __name__ == "__main__":
    main()
