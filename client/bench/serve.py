"""`splitserve bench serve`: measures a server under a load."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from splitserve.client.bench.datasets.dataset import make_dataset
from splitserve.client.bench.datasets.sample import Conversation
from splitserve.client.bench.load.arrivals import arrival_times
from splitserve.client.bench.load.run import Run, Runner
from splitserve.client.bench.load.sender import Sender
from splitserve.client.bench.plan import Plan
from splitserve.client.bench.results.figures import Figures, figures_of
from splitserve.client.bench.results.plot import draw_run, load_matplotlib
from splitserve.client.bench.results.report import result, result_path, table, write_json
from splitserve.client.bench.server_settings import ServerSettings
from splitserve.client.http.answers import ModelCard
from splitserve.client.http.api import Api
from splitserve.client.http.errors import ApiError
from splitserve.client.target.target import find_model
from splitserve.engine_core.errors import EXIT_FAILED, EXIT_OK
from splitserve.engine_core.process.file_limit import raise_file_limit

MAX_SHOWN_ERRORS = 10
POLL_S = 1.0


class Outcome(msgspec.Struct, frozen=True):
    """A measurement: the model's name, its run, and what the run means."""

    model: str
    run: Run
    figures: Figures


def bench_serve(plan: Plan) -> int:
    """Measure once, print the table and write what was asked for; return the exit code.

    Raises:
        ConfigError: a file cannot be read or written, or there is no tokenizer.
        ApiError: the server cannot be reached.
    """
    if plan.report.plot:
        load_matplotlib()
    outcome = measure(plan)
    now = datetime.now()
    print(table(plan, outcome.figures), flush=True)
    if plan.report.save_result:
        path = result_path(plan, outcome.model, now)
        write_json(path, result(plan, outcome.model, outcome.figures, outcome.run.requests, now))
        print(f"written to {path}", file=sys.stderr)
    if plan.report.plot and outcome.figures.num_completed:
        draw_run(outcome.run, Path(plan.report.plot))
    return EXIT_OK if outcome.figures.num_completed else EXIT_FAILED


def measure(plan: Plan) -> Outcome:
    """Send the requests and return what was seen; why some failed is told on stderr.

    Raises:
        ConfigError: a file cannot be read, or there is no tokenizer.
        ApiError: the server cannot be reached.
    """
    raise_file_limit()
    return asyncio.run(_measure(plan))


async def _measure(plan: Plan) -> Outcome:
    server = plan.server
    async with Api(server.address(server.where)) as api:
        card = await _wait_for_model(api, server)
        name = server.served_model_name or card.id
        conversations = make_dataset(plan.dataset, card.root or card.id)
        sender = Sender(api, server.path, name, is_chat=server.is_chat, fields=plan.fields())
        for i in range(plan.traffic.num_warmups):
            await sender.send(conversations[i % len(conversations)][0], [])
        run = await _run(plan, sender, conversations)
    _tell_errors(run)
    figures = figures_of(run, plan.report.percentiles(), plan.report.goodput_limits_s())
    return Outcome(card.id, run, figures)


async def _run(plan: Plan, sender: Sender, conversations: Sequence[Conversation]) -> Run:
    from tqdm import tqdm

    rng = np.random.default_rng(plan.dataset.seed)
    times_s = arrival_times(plan.traffic, len(conversations), rng)
    total = sum(map(len, conversations))
    with tqdm(total=total, disable=plan.report.disable_tqdm or not sys.stderr.isatty()) as bar:
        return await Runner(sender, plan.traffic.max_concurrency, bar.update).run(conversations, times_s)


async def _wait_for_model(api: Api, server: ServerSettings) -> ModelCard:
    """Return the model; its `root` says where its tokenizer may be.

    Raises:
        ApiError: the server does not answer in time.
    """
    end_s = time.monotonic() + server.ready_check_timeout_s
    while True:
        try:
            found = await find_model(api, "")
        except ApiError as error:
            if error.may_pass and time.monotonic() < end_s:
                await asyncio.sleep(POLL_S)
                continue
            # What is asked for by name is asked for even if the server lists nothing.
            if not server.served_model or error.status == 0:
                raise
            found = ModelCard(server.served_model)
        return ModelCard(server.served_model) if server.served_model else found


def _tell_errors(run: Run) -> None:
    failed = [each.error for each in run.requests if each.error]
    if failed:
        print(f"{len(failed)} requests failed:", file=sys.stderr)
    for error in dict.fromkeys(failed[:MAX_SHOWN_ERRORS]):
        print(f"  {error}", file=sys.stderr)
