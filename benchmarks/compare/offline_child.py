"""Runs one engine offline for another process: `python -m benchmarks.compare.offline_child ENGINE MODEL`.

One line of JSON per command on stdin and per answer on stdout: {"prompts": [[id, ...], ...], "num_new": n} is
answered by {"seconds": s}, the start by {"instructions": "..."}. It ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.compare.engines import ENGINES


def main() -> int:
    """Serve until stdin ends; returns 1 when the engine makes another number of tokens than asked for."""
    # Engines print as they please; only answers may go where answers are read.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    generator = ENGINES[sys.argv[1]].load(Path(sys.argv[2]))
    print(json.dumps({"instructions": generator.instructions()}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        prompts, num_new = command["prompts"], command["num_new"]
        start = time.perf_counter()
        counts = generator.generate(prompts, num_new)
        seconds = time.perf_counter() - start
        if counts != [num_new] * len(prompts):
            sys.stderr.write(f"asked for {num_new} tokens of {len(prompts)} prompts, got {counts}\n")
            return 1
        print(json.dumps({"seconds": seconds}), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
