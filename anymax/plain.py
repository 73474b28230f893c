"""Configs as plain values for JSON and back, with every mistake named by the place it stands at."""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
# Dataclasses by the abstract class they are subclasses of.
Kinds = Mapping[type, tuple[type, ...]]

# Characters of a value in a message.
MOST_SHOWN = 120

NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a path as a string"}


def as_plain(value: Any) -> Any:
    """Values that JSON has: a dataclass becomes an object that names its class as "kind", a path a string.

    Args:
        value: a dataclass, or what one may hold: numbers, strings, paths, tuples and mappings.

    Example:
        >>> from anymax.training import Linear, as_plain
        >>> as_plain(Linear(warmup=100))
        {'kind': 'Linear', 'warmup': 100, 'minimum': 0.0}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): as_plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [as_plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"configs must be made of dataclasses, tuples, numbers, strings and paths, got {value!r}")


def from_plain(kind: type[T], values: Any, *, place: str = "", kinds: Kinds | None = None) -> T:
    """The dataclass that `as_plain` gave these values for.

    Args:
        kind: the dataclass.
        values: what `as_plain` gave.
        place: what stands before the names of fields in messages.
        kinds: the dataclasses that may stand where a field is of an abstract class.

    Example:
        >>> from anymax.training import Linear, from_plain
        >>> from_plain(Linear, {"kind": "Linear", "warmup": 100})
        Linear(warmup=100, minimum=0.0)
    """
    result: T = _Reader(kinds or {}).read(kind, values, place)
    return result


def with_absolute_paths(config: T) -> T:
    """The same dataclass with every path in it absolute, so that it means the same from any folder."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if isinstance(value, Path):
            changes[field.name] = value.absolute()
        elif isinstance(value, tuple) and any(isinstance(entry, Path) for entry in value):
            changes[field.name] = tuple(entry.absolute() if isinstance(entry, Path) else entry for entry in value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes[field.name] = with_absolute_paths(value)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


class _Reader:
    """Reads plain values as what the hints of fields say.

    Args:
        kinds: as in `from_plain`.
    """

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds

    def read(self, kind: Any, values: Any, place: str) -> Any:
        """The dataclass of an object."""
        if not isinstance(values, dict):
            raise ValueError(
                f"{place or 'the config'} must be an object, the fields of {kind.__name__}, got {shown(values)}"
            )
        given = {name: value for name, value in values.items() if name != "kind"}
        if values.get("kind", kind.__name__) != kind.__name__:
            raise ValueError(f"{_at(place, 'kind')} must be {kind.__name__!r}, got {shown(values['kind'])}")
        fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
        _check_names(kind, fields, given, place)
        hints = get_type_hints(kind)
        arguments = {name: self._parse(hints[name], value, _at(place, name)) for name, value in given.items()}
        try:
            return kind(**arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}: {error}" if place else str(error)) from error

    def _parse(self, hint: Any, value: Any, place: str) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if hint in self.kinds:
            return self._union(self.kinds[hint], value, place)
        if origin in (Union, types.UnionType):
            return self._union(arguments, value, place)
        if origin is Literal:
            if not any(value == choice and type(value) is type(choice) for choice in arguments):
                raise ValueError(f"{place} must be one of {', '.join(map(repr, arguments))}, got {shown(value)}")
            return value
        if origin is tuple:
            return self._tuple(arguments, value, place)
        if origin is list:
            return list(self._tuple((arguments[0], ...), value, place))
        if origin in (dict, Mapping):
            if not isinstance(value, dict):
                raise ValueError(f"{place} must be an object, got {shown(value)}")
            return {key: self._parse(arguments[1], entry, _at(place, key)) for key, entry in value.items()}
        if dataclasses.is_dataclass(hint):
            return self.read(hint, value, place)
        return _scalar(hint, value, place)

    def _union(self, members: tuple[Any, ...], value: Any, place: str) -> Any:
        if value is None and type(None) in members:
            return None
        rest = [member for member in members if member is not type(None)]
        if len(rest) == 1:
            return self._parse(rest[0], value, place)
        kinds: dict[str, Any] = {_name(member): member for member in rest if dataclasses.is_dataclass(member)}
        if isinstance(value, dict) and kinds:
            kind = value.get("kind")
            if not isinstance(kind, str) or kind not in kinds:
                raise ValueError(f"{_at(place, 'kind')} must be one of {', '.join(kinds)}, got {shown(kind)}")
            return self.read(kinds[kind], value, place)
        for member in sorted(rest, key=lambda member: member is not type(value)):
            try:
                return self._parse(member, value, place)
            except ValueError:
                continue
        raise ValueError(f"{place} must be one of {', '.join(map(_name, members))}, got {shown(value)}")

    def _tuple(self, arguments: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{place} must be a list, got {shown(value)}")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            arguments = (arguments[0],) * len(value)
        if len(value) != len(arguments):
            raise ValueError(f"{place} must have {len(arguments)} entries, got {len(value)}")
        return tuple(
            self._parse(hint, entry, f"{place}[{i}]")
            for i, (hint, entry) in enumerate(zip(arguments, value, strict=True))
        )


def _check_names(kind: Any, fields: Mapping[str, Any], given: Mapping[str, Any], place: str) -> None:
    where = f"{place} ({kind.__name__})" if place else kind.__name__
    unknown = [name for name in given if name not in fields]
    if unknown:
        raise ValueError(f"{where} has no field {shown(unknown[0])}; its fields are {', '.join(fields)}")
    missing = [
        name
        for name, field in fields.items()
        if name not in given and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{where} lacks the field {missing[0]!r}; add it")


def _scalar(hint: Any, value: Any, place: str) -> Any:
    # Torch and C take no larger ones.
    is_whole = type(value) is int and abs(value) < 1 << 63
    if hint is float and (is_whole or type(value) is float):
        return float(value)
    if hint is Path and isinstance(value, str) and "\0" not in value:
        return Path(value)
    if (hint is int and is_whole) or (hint in (bool, str, type(None)) and type(value) is hint):
        return value
    raise ValueError(f"{place} must be {_name(hint)}, got {shown(value)}")


def shown(value: Any) -> str:
    """A value of a file in a message, where it may be of any length."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _name(hint: Any) -> str:
    if hint is type(None):
        return "null"
    if get_origin(hint) is Literal:
        return ", ".join(map(repr, get_args(hint)))
    return NAMES.get(hint) or str(getattr(hint, "__name__", hint))


def _at(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
