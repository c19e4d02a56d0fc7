"""`python -m region_broker` is `tidemark`."""

from region_broker.cli.main import run

if __name__ == "__main__":
    run()
