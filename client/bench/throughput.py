"""`splitserve bench throughput`: how many requests and tokens per second, without HTTP."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
import argparse
import time
from pathlib import Path
from typing import Annotated, Any

from splitserve.client.bench.datasets.settings import DatasetSettings
from splitserve.client.bench.engine_flags import MODEL_AND_ENGINE, engine_keywords, model_name
from splitserve.engine_core.errors import EXIT_OK, ConfigError
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import Setting, Settings, declared
from splitserve.engine_core.settings.sources import add_settings


class ThroughputSettings(Settings, frozen=True, kw_only=True):
    """Settings of the measurement."""

    num_warmups: Annotated[
        int, Setting("requests before the measurement, which are not counted", "report", low=0, high=100_000)
    ] = 0
    output_json: Annotated[
        str, Setting("write the figures to this file", "report", metavar="FILE", default="none")
    ] = ""
    disable_tqdm: Annotated[bool, Setting("show no progress", "report")] = False


THROUGHPUT = (*declared(DatasetSettings), *declared(ThroughputSettings))


def fill(parser: CommandParser) -> None:
    """Add its flags."""
    add_settings(parser, (*THROUGHPUT, *MODEL_AND_ENGINE))


def run(args: argparse.Namespace) -> int:
    """Measure; raises SplitServeError."""
    dataset = make_settings(DatasetSettings, given_values(args, declared(DatasetSettings)))
    settings = make_settings(ThroughputSettings, given_values(args, declared(ThroughputSettings)))
    if dataset.dataset_name == "multi_turn":
        raise ConfigError("--dataset-name multi_turn is for `bench serve`: here all requests begin at once")

    from splitserve import LLM, SamplingParams
    from splitserve.client.bench.datasets.dataset import make_dataset
    from splitserve.client.bench.results.report import write_json

    model = model_name(args)
    samples = [turn for conversation in make_dataset(dataset, model) for turn in conversation]
    prompts = [each.prompt for each in samples if isinstance(each.prompt, str)]
    if len(prompts) < len(samples):
        raise ConfigError("this file has messages, which are for `bench serve --backend openai-chat`")
    params = [
        SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=each.max_tokens) for each in samples
    ]
    keywords: Any = engine_keywords(args)
    with LLM(model, **keywords) as llm:
        if settings.num_warmups:
            num = min(settings.num_warmups, len(prompts))
            llm.generate(prompts[:num], params[:num], use_tqdm=False)
        begin_s = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=not settings.disable_tqdm)
        elapsed_s = time.perf_counter() - begin_s
    num_prompt = sum(len(each.prompt_token_ids) for each in outputs)
    num_output = sum(len(each.outputs[0].token_ids) for each in outputs)
    num_tokens = num_prompt + num_output
    rps, total_tps, output_tps = (count / elapsed_s for count in (len(outputs), num_tokens, num_output))
    print(
        f"Throughput: {rps:.2f} requests/s, {total_tps:.2f} total tokens/s, "
        f"{output_tps:.2f} output tokens/s\n"
        f"Total num prompt tokens:  {num_prompt}\nTotal num output tokens:  {num_output}"
    )
    if settings.output_json:
        figures = {
            "elapsed_time": elapsed_s,
            "num_requests": len(outputs),
            "total_num_tokens": num_tokens,
            "requests_per_second": rps,
            "tokens_per_second": total_tps,
        }
        write_json(Path(settings.output_json), figures)
    return EXIT_OK
