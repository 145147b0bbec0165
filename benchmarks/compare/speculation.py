"""What do drafts gain on a model of 0.6 billion weights? One stream, each engine beside itself without them.

    python -m benchmarks.compare.speculation DIR [--engines splitserve,vllm,llamacpp-bf16] [--methods ...]
        [--rounds 3] [--answers 2] [--tokens 160] [--temperature 0]

DIR is that of `benchmarks.compare setup`; its models are made by benchmarks.enlarged_demo:

    DIR/models/demo-medium   --size medium
    DIR/models/demo-quarter  --size quarter --source DRAFT, of training.distill
    DIR/models/demo-head     --size head --source HEAD, of training.train_eagle3

The servers of one engine take turns: without drafts, with n-grams, a draft model, an EAGLE-3 head. Prompts
are of two kinds: "edit" has a text with wrong words, and the model writes it without them, as it knows it by
heart; "answer" is a question with a long answer. They are token ids, the same for every engine.

SplitServe can quantize what drafts alone: --methods none,draft,draft-int4,eagle-int8.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

from tokenizers import Tokenizer

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.engines.base import Engine
from benchmarks.compare.engines.llama_cpp import LlamaCpp
from benchmarks.compare.engines.split_serve import SplitServe
from benchmarks.compare.gguf_export import gguf_path
from benchmarks.compare.processes import EngineError
from benchmarks.compare.server import Server
from benchmarks.compare.structured import ask
from benchmarks.compare.table import markdown
from benchmarks.repeated_answers import long_answers
from training.copying import WORDS
from training.long_texts import TEXTS

MODEL, DRAFT, HEAD = "demo-medium", "demo-quarter", "demo-head"
METHODS = ("none", "ngram", "draft", "eagle")
KINDS = ("edit", "answer")
# Of a text that is edited; shorter ones are hardly worth a draft.
LEAST_TOKENS = 60
WRONG_EVERY = 20
NUM_DRAFTS = {"ngram": 8, "draft": 4, "eagle": 4}


class Answers(NamedTuple):
    """Some answers of one server: output tokens per second of all, and their texts."""

    rate: float
    texts: list[str]


def arguments(engine: Engine, root: Path, method: str) -> list[str]:
    """Return what a server's command needs for a method.

    Raises:
        EngineError: the engine does not know it.
    """
    models = root / "models"
    if isinstance(engine, LlamaCpp):
        return _llama_arguments(models, engine, method)
    if method == "none":
        return []
    method, _, quantization = method.partition("-")
    fields: dict[str, object] = {"num_speculative_tokens": NUM_DRAFTS[method]}
    if quantization:
        if not isinstance(engine, SplitServe):
            raise EngineError("what drafts has the weights of its checkpoint")
        fields["quantization"] = quantization
    if method == "ngram":
        fields |= {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    elif method == "draft":
        fields |= {"method": "draft_model", "model": str(models / DRAFT)}
    else:
        fields |= {"method": "eagle3", "model": str(models / HEAD)}
    return ["--speculative-config", json.dumps(fields)]


def _llama_arguments(models: Path, engine: LlamaCpp, method: str) -> list[str]:
    # One stream, so one slot that has all of the context.
    common = ["--parallel", "1", "--ctx-size", "2048"]
    count = str(NUM_DRAFTS.get(method, 0))
    if method == "ngram":
        size = ["--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", count]
        return [*common, "--spec-type", "ngram-simple", *size]
    if method == "draft":
        draft = ["--spec-draft-model", str(gguf_path(models / DRAFT, engine.kind))]
        return [*common, "--spec-type", "draft-simple", *draft, "--spec-draft-n-max", count]
    if method == "eagle":
        raise EngineError("no GGUF file of the head is made")
    if method not in ("none", *NUM_DRAFTS):
        raise EngineError("what drafts has the weights of its checkpoint")
    return common


class Prompts:
    """Draws prompts as the demo model's chats; the same for every engine."""

    def __init__(self, tokenizer: Tokenizer, num_answers: int) -> None:
        """Args: num_answers that will be asked for in all."""
        self._tokenizer = tokenizer
        self._random = Random(0)
        texts = [text for text in TEXTS if len(tokenizer.encode(text[1]).ids) >= LEAST_TOKENS]
        self._texts = [texts[i % len(texts)] for i in range(num_answers)]
        self._questions = long_answers(num_answers, LEAST_TOKENS)

    def take(self, kind: str) -> list[int]:
        """Return the next prompt of a kind, as token ids."""
        if kind == "answer":
            return self._questions.pop()
        questions, text = self._texts.pop()
        question = self._random.choice(questions)
        turns = (("user", question), ("assistant", self._with_mistakes(text)), ("user", question))
        chat = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
        return list(self._tokenizer.encode(f"{chat}<|im_start|>assistant\n").ids)

    def _with_mistakes(self, text: str) -> str:
        words = text.split(" ")
        for i in range(self._random.randrange(2, WRONG_EVERY), len(words), WRONG_EVERY):
            words[i] = self._random.choice(WORDS)
        return " ".join(words)


def measure(server: Server, prompts: Sequence[list[int]], fields: Mapping[str, object]) -> Answers:
    """Ask for one answer after the other, with these fields of a request."""
    num_tokens, texts = 0, []
    begun = time.perf_counter()
    for seed, prompt in enumerate(prompts):
        answer = ask(server.url, {"model": MODEL, "prompt": prompt, "seed": seed, **fields})
        num_tokens += answer["usage"]["completion_tokens"]
        texts.append(answer["choices"][0]["text"])
    return Answers(num_tokens / (time.perf_counter() - begun), texts)


class Comparison:
    """Measures engines, one after the other; `rates` by engine, kind and method grow from round to round.

    Attributes:
        num_different: answers, by the same names, that are not those without drafts.
    """

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        self._root, self._options = root, options
        self.rates: dict[tuple[str, str, str], list[float]] = {}
        self.num_different: dict[tuple[str, str, str], int] = {}

    def engine(self, engine: Engine) -> None:
        """Start the engine's servers, and let them take turns."""
        options = self._options
        tokenizer = Tokenizer.from_file(str(self._root / "models" / MODEL / "tokenizer.json"))
        prompts = Prompts(tokenizer, (options.rounds + 1) * options.answers)
        with ExitStack() as stack:
            servers = dict(self._start(engine, stack))
            for number in range(options.rounds + 1):
                for kind in KINDS:
                    asked = [prompts.take(kind) for _ in range(options.answers)]
                    # The first round warms up.
                    self._round(engine.name, kind, servers, asked, counts=number > 0)

    def _start(self, engine: Engine, stack: ExitStack) -> Iterator[tuple[str, Server]]:
        model = self._root / "models" / MODEL
        for method in self._options.methods:
            log = self._root / "logs" / f"speculation-{engine.name}-{method}.log"
            try:
                server = Server(
                    engine, self._root, model, log, arguments=arguments(engine, self._root, method)
                )
            except EngineError as error:
                print(f"{engine.name}, {method} left out: {error}", flush=True)
                continue
            stack.callback(server.process.close)
            server.process.pause()
            yield method, server

    def _round(
        self, name: str, kind: str, servers: dict[str, Server], prompts: Sequence[list[int]], *, counts: bool
    ) -> None:
        fields = {"max_tokens": self._options.tokens, "temperature": self._options.temperature}
        plain: list[str] = []
        for method, server in servers.items():
            server.process.resume()
            answers = measure(server, prompts, fields)
            server.process.pause()
            plain = plain or answers.texts
            if not counts:
                continue
            key = name, kind, method
            self.rates.setdefault(key, []).append(answers.rate)
            differ = sum(a != b for a, b in zip(plain, answers.texts, strict=True))
            self.num_different[key] = self.num_different.get(key, 0) + differ
            print(
                json.dumps({"engine": name, "text": kind, "method": method, "tok_s": answers.rate}),
                flush=True,
            )

    def report(self) -> str:
        """Return the table."""
        heads = ["", "text", "tok/s", "of none", "answers that differ from none"]
        rows = []
        for (name, kind, method), rates in self.rates.items():
            spread = differ = ""
            # Without servers that do not draft there is nothing to compare with.
            if plain := self.rates.get((name, kind, "none")):
                ratios = [rate / other for rate, other in zip(rates, plain, strict=True)]
                spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                differ = str(self.num_different[name, kind, method])
            rows.append([f"{name}, {method}", kind, f"{statistics.median(rates):.1f}", spread, differ])
        return markdown(heads, rows)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path)
    parser.add_argument("--engines", default="splitserve,vllm,llamacpp-bf16")
    parser.add_argument("--methods", default=METHODS, type=lambda text: text.split(","), metavar="NAMES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answers", type=int, default=2, help="of each kind and round")
    parser.add_argument("--tokens", type=int, default=160, help="most of an answer; hardly one has so many")
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    # Ends the servers that were started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    root = options.dir.resolve()
    (root / "logs").mkdir(exist_ok=True)
    comparison = Comparison(root, options)
    for name in options.engines.split(","):
        engine = ENGINES[name]
        for model in (MODEL, DRAFT):
            engine.prepare(root, root / "models" / model, root / "logs" / f"setup-{engine.venv}.log")
        comparison.engine(engine)
    print(f"\ntemperature {options.temperature:g}\n\n{comparison.report()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
