"""kio's generated classes as the codec sees them: which class an API version has, and how its fields are laid out.

No schema module is imported before its API and version is first used (all of them cost a second).
Only public names of kio are used: its index of schemas, its classes, and the metadata of their fields.
Not here: readers (`piece_readers`) and writers (`struct_writers`) that are made of this.
"""

import importlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, cast, get_args, get_origin

from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

NO_DEFAULT: Final = MISSING


class UnknownSchema(LookupError):
    """kio has no schema for that API and version."""


@cache
def has_schema(api_key: int, version: int) -> bool:
    """Return whether requests and responses of that version can be read and written."""
    name = api_key_map.get(api_key)
    return name is not None and version in schema_name_map[name]


def class_of(api_key: int, version: int, kind: EntityType) -> Any:
    """Return kio's class of a request or a response; raises `UnknownSchema`."""
    name = api_key_map.get(api_key)
    versions = {} if name is None else schema_name_map[name]
    if version not in versions:
        raise UnknownSchema(f"there is no schema for API {api_key} version {version}")
    module, _, class_name = cast("Mapping[Any, str]", versions[version])[kind].partition(":")
    return getattr(importlib.import_module(module), class_name)


@dataclass(frozen=True, slots=True)
class FieldShape:
    """How a kio field is laid out: kafka type of primitives, entity of structs, array, nullable, tag; its default."""

    name: str
    kafka_type: str | None
    entity: type | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any = NO_DEFAULT


def field_shapes(entity: Any) -> list[FieldShape]:
    """Return the shapes of an entity's fields in wire order (tagged ones included)."""
    return [_field_shape(item) for item in fields(entity)]


def _field_shape(item: Any) -> FieldShape:
    annotation = item.type
    nullable = False
    if get_origin(annotation) in (UnionType, Union):
        inner = [option for option in get_args(annotation) if option is not NoneType]
        assert len(inner) == 1, annotation
        nullable, annotation = True, inner[0]
    is_array = get_origin(annotation) is tuple
    if is_array:
        annotation = get_args(annotation)[0]
    entity = annotation if is_dataclass(annotation) else None
    assert entity is None or isinstance(entity, type)
    kafka_type, tag = item.metadata.get("kafka_type"), item.metadata.get("tag")
    return FieldShape(item.name, kafka_type, entity, is_array, nullable, tag, item.default)
