"""``dataclass`` as the standard library has it, made when a class is first used.

The standard one writes and compiles six functions for each class when its module is imported: 89 classes took 0.11 of the
0.37 s of `oomproof run -- true` on Python 3.11, and ``dataclasses`` itself 0.01 s more. Here ``__init__`` is compiled at
the first instance, and the others are the same functions for all classes. Of the options ``frozen`` and ``slots`` are
known; there is no inheritance of fields. A type checker sees the standard library's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import asdict, dataclass, field, fields, replace
else:

    class Field:
        """One attribute; the names are the standard library's, whose ``replace`` reads them too."""

        __slots__ = ("_field_type", "default", "default_factory", "init", "name", "type")

        def __init__(self, *, default=..., default_factory=None):
            self.default, self.default_factory = default, default_factory
            self.init, self._field_type = True, None

    field = Field

    def dataclass(cls=None, /, *, frozen=False, slots=False):
        if cls is None:
            return lambda cls: _made(cls, frozen, slots)
        return _made(cls, frozen, slots)

    def fields(record):
        return tuple(record.__dataclass_fields__.values())

    def replace(record, /, **changes):
        for name in record.__dataclass_fields__:
            changes.setdefault(name, getattr(record, name))
        return type(record)(**changes)

    def asdict(record):
        return {name: _plain(getattr(record, name)) for name in record.__dataclass_fields__}

    def _plain(value):
        if hasattr(value, "__dataclass_fields__"):
            return asdict(value)
        if isinstance(value, (list, tuple)):
            return type(value)(_plain(item) for item in value)
        if isinstance(value, dict):
            return {_plain(key): _plain(item) for key, item in value.items()}
        return value

    def _made(cls, frozen, slots):
        known = {}
        for name, kind in cls.__annotations__.items():
            default = cls.__dict__.get(name, ...)
            known[name] = sample = default if isinstance(default, Field) else Field(default=default)
            sample.name, sample.type = name, kind
        body = dict(cls.__dict__) if slots else {}
        body["__dataclass_fields__"] = known
        body["__match_args__"] = tuple(known)
        for name, function in _COMMON.items():
            if name not in cls.__dict__:
                body[name] = function
        if "__eq__" not in cls.__dict__ and "__hash__" not in cls.__dict__:
            body["__hash__"] = _hash if frozen else None
        if frozen:
            body.update(__setattr__=_refuse_set, __delattr__=_refuse_delete)
        if slots:
            for name in (*known, "__dict__", "__weakref__"):
                body.pop(name, None)
            body["__slots__"] = tuple(known)
            qualified = cls.__qualname__
            cls = type(cls)(cls.__name__, cls.__bases__, body)
            cls.__qualname__ = qualified
        else:
            for name, value in body.items():
                setattr(cls, name, value)
            for name, sample in known.items():
                if sample.default_factory is not None:
                    delattr(cls, name)

        def first(self, *given, **named):
            cls.__init__ = init = _compiled(known, frozen, hasattr(cls, "__post_init__"))
            init(self, *given, **named)

        cls.__init__ = first
        return cls

    def _compiled(known, frozen, post_init):
        """What one would write by hand, with the defaults as values of ``space``."""
        space = {"_put": object.__setattr__, "_unset": _UNSET}
        parameters, lines = ["self"], []
        for name, sample in known.items():
            value = name
            if sample.default_factory is not None:
                space[f"_make_{name}"] = sample.default_factory
                parameters.append(f"{name}=_unset")
                value = f"_make_{name}() if {name} is _unset else {name}"
            elif sample.default is not ...:
                space[f"_default_{name}"] = sample.default
                parameters.append(f"{name}=_default_{name}")
            else:
                parameters.append(name)
            lines.append(f" _put(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
        lines.append(" self.__post_init__()" if post_init else " pass")
        exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines), space)
        return space["__init__"]

    def _values(self):
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def _eq(self, other):
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(_values(self))

    def _repr(self):
        pairs = (f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"{type(self).__qualname__}({', '.join(pairs)})"

    def _state(self):
        return [getattr(self, name) for name in self.__dataclass_fields__]

    def _set_state(self, state):
        for name, value in zip(self.__dataclass_fields__, state, strict=True):
            object.__setattr__(self, name, value)

    def _refuse_set(self, name, value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def _refuse_delete(self, name):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")

    _UNSET: Any = object()
    _COMMON = {"__eq__": _eq, "__repr__": _repr, "__getstate__": _state, "__setstate__": _set_state}


__all__ = ["asdict", "dataclass", "field", "fields", "replace"]
