"""Which commands `splitserve` has beside its own: names and help; each is imported only when it is used."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, Protocol

from splitserve.engine_core.settings.parser import CommandParser


class CommandModule(Protocol):
    """What the module of a command has."""

    fill: Callable[[CommandParser], None]
    run: Callable[[argparse.Namespace], int]


class Command(NamedTuple):
    """A command.

    Attributes:
        name: as typed.
        help: one line, for the list of commands.
        description: for its own help.
        module: has `fill`, which adds its flags to a parser, and `run`, which runs it.
    """

    name: str
    help: str
    description: str
    module: str

    def fill(self, parser: CommandParser) -> None:
        """Add its flags."""
        self._load().fill(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run it; return the exit code. Raises SplitServeError."""
        return self._load().run(args)

    def _load(self) -> CommandModule:
        # That the module has both is not known to the type checker; tests look at each.
        return import_module(self.module)


COMMANDS = (
    Command(
        "chat",
        "talk to a model",
        "Talks to a model of a server, or of its own, in the terminal; or answers what is piped in.",
        "splitserve.client.chat.chat",
    ),
    Command(
        "complete",
        "let a model go on with a text",
        "Goes on with texts that are typed, or with the one that is piped in.",
        "splitserve.client.chat.complete",
    ),
    Command(
        "batch",
        "answer a file of requests into another, in OpenAI's batch format",
        "Answers each line of a file of requests; run again after a crash, it goes on where it was.",
        "splitserve.client.batch.command",
    ),
    Command(
        "bench",
        "measure how fast a server, or a model in a script, answers",
        "Measures latency and throughput, with the flags and figures of `vllm bench`.",
        "splitserve.client.bench.command",
    ),
    Command(
        "top",
        "watch a server: engines, frontends, requests",
        "Shows engines, KV blocks, tokens per second, frontends and the oldest requests of a running server.",
        "splitserve.client.top.top",
    ),
    Command(
        "config",
        "write a file of all settings of a command, with their defaults",
        "Writes a YAML file for --config in which every setting stands with its default.",
        "splitserve.client.shell.config",
    ),
    Command(
        "completion",
        "write a script by which a shell completes commands and flags",
        "Writes a script by which a shell completes commands and flags.",
        "splitserve.client.shell.completion",
    ),
)
BENCH_COMMANDS = (
    Command(
        "serve",
        "a server under a load of requests",
        "Sends requests to a server of OpenAI's API and prints throughput and latencies.",
        "splitserve.client.bench.serve_command",
    ),
    Command(
        "sweep",
        "a server at several rates or concurrencies, one after the other",
        "Measures a server as `bench serve` does, at each request rate with each limit of concurrency.",
        "splitserve.client.bench.sweep",
    ),
    Command(
        "latency",
        "one batch of a model in this process's own engine, without HTTP",
        "Generates one batch again and again with the LLM class and prints how long that takes.",
        "splitserve.client.bench.latency",
    ),
    Command(
        "throughput",
        "many requests at once to a model in this process's own engine, without HTTP",
        "Generates all answers of a dataset with the LLM class and prints requests and tokens per second.",
        "splitserve.client.bench.throughput",
    ),
)


def add_commands(commands: argparse._SubParsersAction[CommandParser], added: tuple[Command, ...]) -> None:
    """Add commands to a parser, without importing any."""
    for each in added:
        parser = commands.add_parser(
            each.name, help=each.help, description=each.description, allow_abbrev=False
        )
        parser.fill = each.fill
