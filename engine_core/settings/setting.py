"""What a setting is: a value declared once, in the annotation of a field.

    lease_s: Annotated[float, Setting("seconds of silence", "connections", low=1, high=3600)] = 30.0

The flag and its help (settings.arguments), the range check (Settings.validate), the keyword of LLM, what a
worker gets (WorkerSettings) and the tables of docs/cli.md are derived from it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from splitserve.engine_core.settings.checks import check_choice, check_range
from splitserve.engine_core.settings.flag_values import format_bytes, parse_bytes, parse_count, parse_name

Value = str | int | float | bool | None
"""One value of a setting; None means "not given" for settings that can be left unset."""
S = TypeVar("S", bound="Settings")


class Setting(msgspec.Struct, frozen=True):
    """The description of a setting for users, and the values that it takes.

    Attributes:
        help: a phrase, without the default, which is appended.
        group: title in the help and in docs/cli.md.
        flag: as typed, with its dashes; "" derives it from the field's name, without the suffix _s (seconds).
        alias: a short flag.
        metavar: placeholder of the value in the help; "" derives it from the type.
        low, high: range of a number, inclusive.
        choices: allowed values.
        parse: converts a word of the command line; None chooses by type.
        negatable: whether a switch also has a --no- form.
        default: describes a default whose value is not self-explanatory.
        docs: Markdown for docs/cli.md only, after the help: limits, links.
        llm: whether it is also a keyword of LLM.
        serve: whether it is also a flag of `splitserve serve`.
    """

    help: str
    group: str
    flag: str = ""
    alias: str = ""
    metavar: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Value] | None = None
    negatable: bool = False
    default: str = ""
    docs: str = ""
    llm: bool = False
    serve: bool = True


class Declared(msgspec.Struct, frozen=True):
    """A setting as a field of a configuration.

    Attributes:
        field: the field's name.
        type: bool, int, float or str: of the value, or of each value if there are several.
        many: whether it takes several values.
        setting: its declaration.
        info: msgspec's description of the field.
    """

    field: str
    type: type
    many: bool
    setting: Setting
    info: msgspec.structs.FieldInfo

    @property
    def flag(self) -> str:
        """The flag with its dashes."""
        return self.setting.flag or "--" + self.field.removesuffix("_s").replace("_", "-")

    @property
    def keyword(self) -> str:
        """The flag as a Python keyword argument."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def default(self) -> object:
        """The value if none is given."""
        if self.info.default_factory is not msgspec.NODEFAULT:
            return self.info.default_factory()
        return None if self.info.default is msgspec.NODEFAULT else self.info.default

    @property
    def parse(self) -> Callable[[str], Value]:
        """Converts a word of the command line."""
        if self.setting.parse is not None:
            return self.setting.parse
        return parse_name if self.setting.choices else _PARSERS[self.type]

    @property
    def metavar(self) -> str:
        """The placeholder of a value in the help."""
        setting = self.setting
        if setting.metavar or setting.choices:
            return setting.metavar or f"{{{','.join(setting.choices)}}}"
        return {int: "N", float: "S"}.get(self.type, "VALUE")

    @property
    def shown_default(self) -> str:
        """The default as shown to users, "" if there is nothing to show."""
        text = self._text(self.default)
        # A default that is computed here, such as an address, says more than its description.
        is_computed = self.info.default_factory is not msgspec.NODEFAULT
        return text if is_computed and text else self.setting.default or text

    def check(self, value: object) -> None:
        """Check a value against the declaration.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        setting = self.setting
        for each in value if isinstance(value, list | tuple) else (value,):
            if setting.choices:
                check_choice(self.flag, each, setting.choices)
            if setting.low is not None and setting.high is not None and each is not None:
                check_range(self.flag, each, setting.low, setting.high)

    def _text(self, value: object) -> str:
        match value:
            case bool():
                return "on" if value else "off"
            case float():
                return f"{value:g}"
            case int() if self.setting.parse is parse_bytes:
                return format_bytes(value)
            case list() | tuple():
                return " ".join(map(str, value))
        return "" if value is None else str(value)


_PARSERS: dict[type, Callable[[str], Value]] = {int: parse_count, float: float, str: str}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of configurations: structs whose fields are settings."""

    def validate(self) -> None:
        """Check every value against its declaration; subclasses add the constraints between settings.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        for each in declared(type(self)):
            each.check(getattr(self, each.field))

    def narrowed_to(self, base: type[S]) -> S:
        """Return an instance of a base class, with the settings that it declares."""
        return base(**{name: getattr(self, name) for name in base.__struct_fields__})


@functools.cache
def declared(config: type[Settings]) -> tuple[Declared, ...]:
    """Return the settings of a configuration in the order of its fields; other fields are left out."""
    fields = msgspec.structs.fields(config)
    return tuple(each for info in fields if (each := _declared(info)) is not None)


def _declared(info: msgspec.structs.FieldInfo) -> Declared | None:
    if get_origin(info.type) is not Annotated:
        return None
    kind, *extras = get_args(info.type)
    settings = [extra for extra in extras if isinstance(extra, Setting)]
    if not settings:
        return None
    many = get_origin(kind) in (list, tuple)
    return Declared(info.name, _plain_type(kind), many, settings[-1], info)


def _plain_type(kind: Any) -> type:
    """Return float for float, list[float], tuple[float, ...] and float | None."""
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias):
        return kind
    plain: type = get_args(kind)[0]
    return plain
