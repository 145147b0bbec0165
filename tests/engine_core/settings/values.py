"""A value other than the default for any declared setting, so that tests need no list of settings."""

from __future__ import annotations

from splitserve.engine_core.settings.setting import Declared


def other_value(each: Declared) -> object:
    """A valid value that is not the default, as far as the declaration tells."""
    value = _other(each)
    return type(each.default)((value,)) if isinstance(each.default, list | tuple) else value


def _other(each: Declared) -> object:
    setting = each.setting
    if each.type is bool:
        return not each.default
    if setting.choices:
        return next(choice for choice in setting.choices if choice != each.default)
    if setting.low is not None and setting.high is not None:
        return each.type(setting.high if each.default != setting.high else setting.low)
    if setting.metavar == "JSON":
        return '{"method": "ngram"}'
    if setting.metavar == "URL":
        return "http://other:1"
    return "other=1" if setting.metavar.startswith("NAME=") else "other"
