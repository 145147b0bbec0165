"""deploy/monitoring against a running server: nothing there asks for a metric or label it does not have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggregateExpr, Expr, VectorSelector

from tests.engine_core.launcher.serving import serving
from tests.frontend.metrics.test_vllm_names import COUNTERS, GAUGES, HISTOGRAMS

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "deploy/monitoring"
DASHBOARDS = sorted(MONITORING.glob("grafana/dashboards/*.json"))
ALERTS = MONITORING / "alerts.yml"
PROMTOOL = shutil.which("promtool") or shutil.which(ROOT / "build/tools/promtool")
# Added by Prometheus to everything it scrapes.
SCRAPED = {"job", "instance", "__name__"}
VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*", "$model_name": ".*"}

Labels = dict[str, set[str]]
pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def scraped() -> Iterator[str]:
    """A scrape of a server of two frontends that has answered a request."""
    with serving("--api-server-count", "2", "--metrics-compat", "vllm") as server:
        url = server.url()
        server.wait_all_ready(url, 2)
        server.complete(url)
        yield httpx.get(f"{url}/metrics").text


@pytest.fixture(scope="module")
def labels(scraped: str) -> Labels:
    """Label names of every series, by its name; `up` is Prometheus' own."""
    found: Labels = {"up": set()}
    for family in text_string_to_metric_families(scraped):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


class Names:
    """The metrics of an expression with the labels that are matched, and labels that it groups by."""

    def __init__(self, text: str) -> None:
        for variable, value in VARIABLES.items():
            text = text.replace(variable, value)
        self.matched: list[tuple[str, str]] = []
        self.grouped: set[str] = set()
        promql_parser.walk(promql_parser.parse(text), self._visit)

    def _visit(self, node: Expr) -> None:
        if isinstance(node, VectorSelector):
            assert node.name is not None
            self.matched += [(node.name, matcher.name) for matcher in node.matchers.matchers]
            self.matched.append((node.name, "__name__"))
        elif isinstance(node, AggregateExpr) and node.modifier is not None:
            self.grouped.update(node.modifier.labels)


def check(text: str, labels: Labels, used: str = "") -> None:
    """Args: used names labels in braces, as in a legend."""
    names = Names(text)
    assert names.matched, text
    for metric, label in names.matched:
        assert metric in labels, f"{metric} of {text}"
        assert label in labels[metric] | SCRAPED, f"{label} of {text}"
    known = SCRAPED.union(*(labels[metric] for metric, _ in names.matched))
    assert names.grouped | set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", used)) <= known, text


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_there_is_something_to_check() -> None:
    assert DASHBOARDS
    assert len(rules()) >= 10


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_every_panel_asks_for_what_a_server_has(path: Path, labels: Labels) -> None:
    for panel in panels(path):
        for target in panel.get("targets", []):
            check(target["expr"], labels, target["legendFormat"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_variables_are_looked_up_in_what_a_server_has(path: Path, labels: Labels) -> None:
    variables = {each["name"]: each for each in json.loads(path.read_text())["templating"]["list"]}
    for each in variables.values():
        if each["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
            assert match is not None
            check(match[1], labels, "{{" + match[2] + "}}")
    text = path.read_text()
    assert {*re.findall(r"\$(\w+)", text)} <= {*variables, "__rate_interval", "__all"}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_panels_stand_beside_each_other(path: Path) -> None:
    cells: set[tuple[int, int]] = set()
    found = panels(path)
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        at = panel["gridPos"]
        own = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_every_alert_asks_for_what_a_server_has(rule: dict[str, Any], labels: Labels) -> None:
    check(rule["expr"], labels, " ".join(rule["annotations"].values()))
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description"}


def test_a_metric_that_no_server_has_is_found() -> None:
    with pytest.raises(AssertionError, match="splitserve:absent"):
        check("rate(splitserve:absent[5m])", {"splitserve:here": set()})
    with pytest.raises(AssertionError, match="engine of"):
        check('splitserve:here{engine="a"}', {"splitserve:here": {"model_name"}})


def test_vllms_names_are_all_in_a_real_scrape(labels: Labels) -> None:
    names = [*(f"{each}_bucket" for each in HISTOGRAMS), *(f"{each}_total" for each in COUNTERS), *GAUGES]
    # There are no adapters here.
    assert {name for name in names if f"vllm:{name}" not in labels} == {"lora_requests_info"}


def test_every_metric_is_documented(scraped: str) -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    names = re.findall(r"^# HELP ((?:splitserve:|http_)\w+)", scraped, re.MULTILINE)
    assert len(names) > 40
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    "words",
    [
        ["check", "config", MONITORING / "prometheus.yml"],
        ["test", "rules", Path(__file__).parent / "alerts_test.yml"],
    ],
    ids=["config", "rules"],
)
def test_promtool_finds_no_fault(words: list[str | Path]) -> None:
    if PROMTOOL is None:
        pytest.skip("there is no promtool: .ci/promtool fetches it")
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
