"""Starts a client of `confluent_kafka.kafkatest`: `python -m tests.compat.verifiable producer|consumer ...`.

They come with confluent-kafka, are scripts beside each other, and print events as JSON, one a line. In 2.16 they do not
run on Python 3: they ask a dict for `iteritems`, and give bytes to `json`. These two things are mended here, from
outside; the rest is theirs.
"""

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import kafkatest


class _WithItems(dict[str, Any]):
    """What `set_config` takes."""

    iteritems = dict.items


def _send(_client: object, event: dict[str, Any]) -> None:
    print(json.dumps(event, default=bytes.decode), flush=True)


def main(arguments: list[str]) -> None:
    """Run the client named by the first argument with the others."""
    name, *rest = arguments
    folder = Path(kafkatest.__file__).parent
    sys.path.insert(0, str(folder))
    client = importlib.import_module("verifiable_client").VerifiableClient
    set_config = client.set_config
    client.set_config = staticmethod(lambda conf, args: set_config(conf, _WithItems(args)))
    client.send = _send
    sys.argv = [name, *rest]
    runpy.run_path(str(folder / f"verifiable_{name}.py"), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
