"""The tables of flags and keywords in docs/, made from the declarations of the settings.

A table follows a comment: `<!-- flags of COMMAND: GROUP -->` in docs/cli.md, `<!-- keywords of LLM -->` in
docs/offline.md. `python -m tests.cli_tables` writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from splitserve.client.batch.settings import BatchSettings
from splitserve.client.bench.latency import LatencySettings
from splitserve.client.bench.plan import BENCH_SERVE
from splitserve.client.bench.sweep import SweepSettings
from splitserve.client.bench.throughput import ThroughputSettings
from splitserve.client.chat.settings import ChatSettings
from splitserve.client.target.settings import TargetSettings
from splitserve.client.top.settings import TopSettings
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.launcher.restart import RESTART
from splitserve.engine_core.launcher.serve_settings import FRONTEND, SERVE
from splitserve.engine_core.settings.setting import Declared, Settings, declared
from splitserve.frontend.config import FRONTEND_SETTINGS
from splitserve.frontend.offline.engine_keywords import engine_keywords

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (DOCS / "cli.md", DOCS / "offline.md")


def own(settings: type[Settings]) -> tuple[Declared, ...]:
    """The settings of a command that asks a server, without those that all such commands have."""
    shared = {each.field for each in declared(TargetSettings)}
    return tuple(each for each in declared(settings) if each.field not in shared)


SETTINGS: dict[str, tuple[Declared, ...]] = {
    "engine-core": declared(EngineConfig),
    "serve": (*SERVE, *FRONTEND),
    "restart": RESTART,
    "api-frontend": tuple(each for each in FRONTEND_SETTINGS if each not in FRONTEND),
    "chat and complete and batch": declared(TargetSettings),
    "chat": own(ChatSettings),
    "batch": own(BatchSettings),
    "top": declared(TopSettings),
    "bench serve": BENCH_SERVE,
    "bench sweep": declared(SweepSettings),
    "bench latency": declared(LatencySettings),
    "bench throughput": declared(ThroughputSettings),
}
_HEAD = "| flag | default | values | meaning |\n| --- | --- | --- | --- |\n"
_TABLE = re.compile(r"(<!-- flags of ([a-z -]+): ([A-Za-z ]+) -->\n)(?:\|.*\n)*")


_KEYWORDS = re.compile(r"(<!-- keywords of LLM -->\n)(?:\|.*\n)*")


def groups() -> set[tuple[str, str]]:
    """Every table there has to be, as command and group."""
    return {(command, each.setting.group) for command, many in SETTINGS.items() for each in many}


def tables_in(text: str) -> list[tuple[str, str]]:
    """The tables that a page has, in order."""
    return [(command, group) for _, command, group in _TABLE.findall(text)]


def with_tables(text: str) -> str:
    """The page with every table as the declarations have it now."""
    text = _TABLE.sub(lambda match: match[1] + table(match[2], match[3]), text)
    return _KEYWORDS.sub(lambda match: match[1] + keywords(), text)


def table(command: str, group: str) -> str:
    """One table in Markdown."""
    return _HEAD + "".join(
        _row(each, _flag(each)) for each in SETTINGS[command] if each.setting.group == group
    )


def keywords() -> str:
    """The table of the keywords of LLM in Markdown."""
    rows = [_row(each, f"`{name}`") for name, each in engine_keywords().items()]
    return _HEAD.replace("flag", "keyword") + "".join(rows)


def _row(each: Declared, name: str) -> str:
    setting = each.setting
    cells = (name, setting.default or each.shown_default, _values(each), setting.help + setting.docs)
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
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))
