"""`splitserve bench latency`: how long one batch takes, without HTTP."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
import argparse
import time
from pathlib import Path
from typing import Annotated, Any

from splitserve.client.bench.engine_flags import MODEL_AND_ENGINE, engine_keywords, model_name
from splitserve.engine_core.errors import EXIT_OK
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import Setting, Settings, declared
from splitserve.engine_core.settings.sources import add_settings

PERCENTILES = (10, 25, 50, 75, 90, 99)
# Ids of ordinary tokens in every vocabulary, as long as it has that many.
MAX_TOKEN_ID = 10_000


class LatencySettings(Settings, frozen=True, kw_only=True):
    """Settings of the batch."""

    input_len: Annotated[int, Setting("tokens of each prompt", "batch", low=1, high=2**23)] = 32
    output_len: Annotated[int, Setting("tokens of each answer", "batch", low=1, high=2**23)] = 128
    batch_size: Annotated[int, Setting("prompts at a time", "batch", low=1, high=65536)] = 8
    num_iters_warmup: Annotated[
        int, Setting("batches before the measurement", "batch", low=0, high=100_000)
    ] = 10
    num_iters: Annotated[int, Setting("batches that are measured", "batch", low=1, high=100_000)] = 30
    output_json: Annotated[
        str, Setting("write the figures to this file", "batch", metavar="FILE", default="none")
    ] = ""


LATENCY = declared(LatencySettings)


def fill(parser: CommandParser) -> None:
    """Add its flags."""
    add_settings(parser, (*LATENCY, *MODEL_AND_ENGINE))


def run(args: argparse.Namespace) -> int:
    """Measure; raises SplitServeError."""
    settings = make_settings(LatencySettings, given_values(args, LATENCY))

    import numpy as np

    from splitserve import LLM, SamplingParams
    from splitserve.client.bench.results.report import write_json

    # Every batch would find all of its prompts in the prefix cache.
    keywords: Any = {"enable_prefix_caching": False, **engine_keywords(args)}
    with LLM(model_name(args), **keywords) as llm:
        params = SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=settings.output_len)
        num_tokens = min(MAX_TOKEN_ID, llm.get_tokenizer().vocab_size)
        shape = (settings.batch_size, settings.input_len)
        prompts = np.random.default_rng(0).integers(num_tokens, size=shape).tolist()
        for _ in range(settings.num_iters_warmup):
            llm.generate(prompts, params, use_tqdm=False)
        latencies_s = []
        for _ in range(settings.num_iters):
            begin_s = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            latencies_s.append(time.perf_counter() - begin_s)
    found = dict(zip(PERCENTILES, np.percentile(latencies_s, PERCENTILES).tolist(), strict=True))
    mean_s = float(np.mean(latencies_s))
    print(f"Avg latency: {mean_s} seconds")
    for percentile, value_s in found.items():
        print(f"{percentile}% percentile latency: {value_s} seconds")
    if settings.output_json:
        figures = {"avg_latency": mean_s, "latencies": latencies_s, "percentiles": found}
        write_json(Path(settings.output_json), figures)
    return EXIT_OK
