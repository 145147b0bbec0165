"""The tables of docs/cli.md, made from the declarations of the settings.

A table follows a comment: `<!-- flags of COMMAND: GROUP -->`. `python -m tests.cli_tables` writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.launcher.serve_settings import FRONTEND, SERVE
from splitserve.engine_core.settings.setting import Declared, declared
from splitserve.frontend.config import FRONTEND_SETTINGS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
SETTINGS: dict[str, tuple[Declared, ...]] = {
    "engine-core": declared(EngineConfig),
    "serve": (*SERVE, *FRONTEND),
    "api-frontend": tuple(each for each in FRONTEND_SETTINGS if each not in FRONTEND),
}
_HEAD = "| flag | default | values | meaning |\n| --- | --- | --- | --- |\n"
_TABLE = re.compile(r"(<!-- flags of ([a-z-]+): ([A-Za-z ]+) -->\n)(?:\|.*\n)*")


def groups() -> set[tuple[str, str]]:
    """Every table there has to be, as command and group."""
    return {(command, each.setting.group) for command, many in SETTINGS.items() for each in many}


def tables_in(text: str) -> list[tuple[str, str]]:
    """The tables that a page has, in order."""
    return [(command, group) for _, command, group in _TABLE.findall(text)]


def with_tables(text: str) -> str:
    """The page with every table as the declarations have it now."""
    return _TABLE.sub(lambda match: match[1] + table(match[2], match[3]), text)


def table(command: str, group: str) -> str:
    """One table in Markdown."""
    return _HEAD + "".join(_row(each) for each in SETTINGS[command] if each.setting.group == group)


def _row(each: Declared) -> str:
    setting = each.setting
    cells = (_flag(each), setting.default or each.shown_default, _values(each), setting.help + setting.docs)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _flag(each: Declared) -> str:
    others = [each.setting.alias, each.flag.replace("--", "--no-", 1) if each.setting.negatable else ""]
    also = "".join(f" (`{other}`)" for other in others if other)
    return f"`{each.flag}`{also}" + ("" if each.type is bool or each.setting.choices else f" {each.metavar}")


def _values(each: Declared) -> str:
    low, high = each.setting.low, each.setting.high
    if low is None or high is None:
        return ", ".join(each.setting.choices)
    return f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    exponent = int(value).bit_length() - 1
    is_round = exponent >= 18 and value == 2**exponent
    return f"2^{exponent}" if is_round else str(value)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
