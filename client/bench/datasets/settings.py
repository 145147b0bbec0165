"""Which dataset, and how long its requests are: flags named as those of vLLM's benchmarks."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
from typing import Annotated

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Setting, Settings

DATASETS = ("random", "prefix_repetition", "multi_turn", "sharegpt", "custom")
FROM_FILES = ("sharegpt", "custom")
MAX_LEN = 2**23


def _length(help_text: str, low: int = 1, default: str = "") -> Setting:
    return Setting(help_text, "dataset", metavar="TOKENS", low=low, high=MAX_LEN, default=default)


class DatasetSettings(Settings, frozen=True, kw_only=True):
    """Settings of the requests to send."""

    dataset_name: Annotated[
        str,
        Setting(
            "what is sent: random texts, texts with shared beginnings, conversations, a ShareGPT file, or "
            "JSON lines of one's own",
            "dataset",
            choices=DATASETS,
        ),
    ] = "random"
    dataset_path: Annotated[
        str,
        Setting(
            'file of a dataset: ShareGPT\'s JSON; or lines of {"prompt": ...} or {"messages": [...]}, with '
            "output_tokens if --custom-output-len is -1",
            "dataset",
            metavar="FILE",
            default="none",
        ),
    ] = ""
    num_prompts: Annotated[int, Setting("number of requests", "dataset", low=1, high=10_000_000)] = 1000
    seed: Annotated[int, Setting("of everything random", "dataset", low=0, high=2**32 - 1)] = 0
    input_len: Annotated[int | None, _length("the same as --random-input-len", default="not given")] = None
    output_len: Annotated[
        int | None, _length("output tokens to ask for, of every dataset", default="not given")
    ] = None
    random_input_len: Annotated[int, _length("tokens of a random text, or of a turn of multi_turn")] = 1024
    random_output_len: Annotated[int, _length("output tokens to ask for after a random text")] = 128
    random_range_ratio: Annotated[
        float,
        Setting(
            "lengths are random from 1 - R to 1 + R times those given",
            "dataset",
            metavar="R",
            low=0,
            high=0.999,
        ),
    ] = 0.0
    random_prefix_len: Annotated[
        int, _length("tokens that all random texts begin with, beside their own", 0)
    ] = 0
    prefix_repetition_prefix_len: Annotated[int, _length("tokens of a shared beginning")] = 256
    prefix_repetition_suffix_len: Annotated[int, _length("tokens of a prompt's own after it")] = 256
    prefix_repetition_num_prefixes: Annotated[
        int, Setting("number of shared beginnings", "dataset", low=1, high=1_000_000)
    ] = 10
    prefix_repetition_output_len: Annotated[int, _length("output tokens to ask for after it")] = 128
    multi_turn_num_turns: Annotated[
        int,
        Setting(
            "questions of a conversation; each waits for the answer before it", "dataset", low=1, high=1000
        ),
    ] = 4
    sharegpt_output_len: Annotated[
        int | None, _length("output tokens to ask for", default="as many as the answer in the file has")
    ] = None
    custom_output_len: Annotated[
        int,
        Setting(
            "output tokens to ask for; -1 takes output_tokens of the file",
            "dataset",
            metavar="TOKENS",
            low=-1,
            high=MAX_LEN,
        ),
    ] = 256
    disable_shuffle: Annotated[bool, Setting("keep the order of the file", "dataset")] = False
    no_oversample: Annotated[
        bool, Setting("send fewer requests if the file has fewer, instead of some twice", "dataset")
    ] = False
    tokenizer: Annotated[
        str,
        Setting(
            "whose tokens are counted: a directory, a tokenizer.json or a Hugging Face id",
            "dataset",
            metavar="DIR|ID",
            default="the model's",
        ),
    ] = ""
    skip_tokenizer_init: Annotated[
        bool, Setting("make texts of words instead of tokens, without any tokenizer", "dataset")
    ] = False

    def validate(self) -> None:
        """Check every value against its declaration, and that a file is named where one is needed.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        if (self.dataset_name in FROM_FILES) != bool(self.dataset_path):
            needs = f"needs --dataset-path, a file; {', '.join(set(DATASETS) - set(FROM_FILES))} take none"
            raise ConfigError(
                f"--dataset-name {self.dataset_name} {needs}"
                if not self.dataset_path
                else f"--dataset-path goes with --dataset-name {' or '.join(FROM_FILES)}"
            )
        if self.custom_output_len == 0:
            raise ConfigError("--custom-output-len must be at least 1, or -1")
        if self.dataset_name == "sharegpt" and self.skip_tokenizer_init and not self.fixed_output_len:
            raise ConfigError("--dataset-name sharegpt needs a tokenizer, or --sharegpt-output-len")

    @property
    def fixed_output_len(self) -> int | None:
        """Output tokens to ask for after each prompt of a ShareGPT file, None for the file's own."""
        return self.output_len or self.sharegpt_output_len
