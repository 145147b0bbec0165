"""Which JSON schemas are served, are instances judged rightly, and what do compiling and masks cost?

Usage: python -m benchmarks.json_schemas FOLDER --tokenizer FILE [--limit N] [--json FILE]

FOLDER holds, at any depth, files of JSONSchemaBench's form (an object with `schema` and `tests`) or of the
JSON Schema Test Suite's (a list of such objects); each test has `data` and `valid`. Every schema is turned
into a grammar as a request's is. Of those that are served each instance is written compactly and tokenised:
a valid one has to be accepted to its end, an invalid one cut at some token. Of the valid ones that are cut
some would be accepted with their properties in the schema's order. Masks are computed at every token of the
valid ones.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.property_orders import takes_in_some_order
from splitserve.frontend.text.grammar.build import GrammarBuilder
from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.worker.grammar.compiler import parser_limits

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


@dataclass
class Found:
    """What came of all files; times in microseconds."""

    num_schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    of_group: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    compile_us: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)


def cases(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, group and content of every schema."""
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text())
        is_suite = isinstance(content, list)
        for i, case in enumerate(content if is_suite else [content]):
            group = path.stem if is_suite else re.split("---|_", path.name)[0]
            yield f"{path.name}[{i}]" if is_suite else path.name, group, case


def accepts(matcher: LLMatcher, tokenizer: LLTokenizer, data: object, mask_us: list[float] | None) -> bool:
    """Whether a matcher takes an instance to its end."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    mask = np.zeros((tokenizer.vocab_size + 31) // 32, np.int32)
    for token_id in tokenizer.tokenize_str(text):
        if mask_us is not None:
            started = time.perf_counter()
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            mask_us.append(1e6 * (time.perf_counter() - started))
        if not matcher.consume_token(token_id):
            return False
    return matcher.is_accepting()


def look_at(case: dict[str, Any], name: str, group: str, tokenizer: LLTokenizer, found: Found) -> None:
    """Serve one schema and judge its instances."""
    from llguidance import LLMatcher

    found.num_schemas += 1
    found.of_group[group] += 1
    started = time.perf_counter()
    try:
        grammar = GrammarBuilder({}, None).build("json", case["schema"], None)
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        reason = matcher.get_error()
    except RefusalError as error:
        reason = str(error)
    if reason:
        found.refused[_kind(reason)] += 1
        return
    found.compile_us.append(1e6 * (time.perf_counter() - started))
    found.served[group] += 1
    for test in case["tests"]:
        is_valid = bool(test["valid"])
        mask_us = found.mask_us if is_valid else None
        is_accepted = accepts(matcher.deep_copy(), tokenizer, test["data"], mask_us)
        kind = "valid" if is_valid else "invalid"
        if is_valid and not is_accepted and takes_in_some_order(matcher, tokenizer, test["data"]):
            found.judged["valid, cut for the order of properties"] += 1
            continue
        found.judged[f"{kind}, {'accepted' if is_accepted else 'cut'}"] += 1
        if is_accepted != is_valid:
            found.wrong.append(f"{name}: {kind}: {test.get('description', '')}")


def _kind(reason: str) -> str:
    """A reason without what differs from schema to schema."""
    # Behind it comes where llguidance was.
    reason = next(line for line in reason.splitlines()[::-1] if "while processing" not in line)
    keys = re.search(r'Unimplemented keys: \[(".*?")[\],]', reason)
    if keys:
        return f"keyword {keys[1]}"
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "_", reason)[:90]


def report(found: Found) -> None:
    """Print the tables."""
    num_served = sum(found.served.values())
    share = num_served / max(1, found.num_schemas)
    print(f"served: {num_served} of {found.num_schemas} ({100 * share:.1f} %)")
    groups = (f"{group} {found.served[group]}/{count}" for group, count in sorted(found.of_group.items()))
    print("by group:", ", ".join(groups))
    for reason, count in found.refused.most_common(40):
        print(f"  refused {count:>5}  {reason}")
    for kind, count in sorted(found.judged.items()):
        print(f"instances {kind}: {count}")
    for name, times in (("compile", found.compile_us), ("mask", found.mask_us)):
        if times:
            p50, p99, most = np.percentile(times, [50, 99, 100])
            print(f"{name}: {len(times)}, p50 {p50:.0f} us, p99 {p99:.0f} us, longest {most:.0f} us")


def main() -> None:
    """Parse flags, look at all files, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--limit", type=int, default=10**9, help="schemas at most")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    from llguidance import LLTokenizer

    tokenizer, found = LLTokenizer(args.tokenizer), Found()
    for name, group, case in cases(args.folder):
        if found.num_schemas == args.limit:
            break
        look_at(case, name, group, tokenizer, found)
    report(found)
    if args.json is not None:
        args.json.write_text(json.dumps(vars(found)))


if __name__ == "__main__":
    main()
