"""A batch from the check of its files to the count of its answers."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from pathlib import Path

from splitserve.client.batch.answers import AnswerFile
from splitserve.client.batch.requests import BatchFile
from splitserve.client.batch.run import BatchRun
from splitserve.client.batch.settings import BatchSettings
from splitserve.client.http.address import Address
from splitserve.client.http.api import Api
from splitserve.client.http.errors import ApiError
from splitserve.client.target.target import target
from splitserve.engine_core.errors import EXIT_FAILED, EXIT_OK, ConfigError
from splitserve.engine_core.process.file_limit import raise_file_limit


def batch(settings: BatchSettings, model: str | None) -> int:
    """Answer what has no answer yet; return the exit code.

    Args:
        settings: of the command.
        model: to start a server of, None for the one of the settings.

    Raises:
        ConfigError: a file cannot be read or written, both are one, or a line is wrong.
        EngineUnavailableError: the model cannot be served.
    """
    raise_file_limit()
    source, target_file = Path(settings.input_file).expanduser(), Path(settings.output_file).expanduser()
    if _are_one(source, target_file):
        raise ConfigError("--output-file is the file of the requests: name another one")
    with (
        closing(BatchFile(source)) as requests,
        closing(AnswerFile(target_file, overwrite=settings.overwrite)) as answers,
    ):
        answers.check_belongs_to({place.custom_id for place in requests.places})
        fault = None
        if len(answers.done) < len(requests.places):
            with target(settings, model) as address:
                fault = asyncio.run(_run(settings, address, requests, answers))
    return _tell(len(answers.done), len(requests.places), fault)


def _are_one(source: Path, target_file: Path) -> bool:
    try:
        return source.samefile(target_file)
    except OSError:
        # One is missing or out of reach; what opens it says so.
        return False


async def _run(
    settings: BatchSettings, address: Address, requests: BatchFile, answers: AnswerFile
) -> ApiError | None:
    from tqdm import tqdm

    with tqdm(
        total=len(requests.places),
        initial=len(answers.done),
        unit="request",
        disable=settings.disable_tqdm or not sys.stderr.isatty(),
    ) as bar:
        async with Api(address) as api:
            run = BatchRun(
                api,
                requests,
                answers,
                model=settings.served_model,
                max_retries=settings.max_retries,
                on_answer=bar.update,
            )
            return await run.run(settings.max_concurrency)


def _tell(num_done: int, num_requests: int, fault: ApiError | None) -> int:
    print(f"{num_done} of {num_requests} requests have an answer", file=sys.stderr, flush=True)
    if fault is None:
        return EXIT_OK
    print(f"the others failed ({fault}): run the command again to go on", file=sys.stderr, flush=True)
    return EXIT_FAILED
