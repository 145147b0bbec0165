"""The settings of an api-frontend that shape the API, and the limits that protect it."""

# No "from __future__ import annotations": --help would compile each declaration from its text, 10 ms in all.
from typing import Annotated

from splitserve.engine_core.sampling_params import MAX_LOGPROBS
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from splitserve.engine_core.settings.checks import check_range
from splitserve.engine_core.settings.flag_values import parse_bytes
from splitserve.engine_core.settings.setting import Setting
from splitserve.frontend.batch_settings import BatchSettings
from splitserve.frontend.text.answers.formats import REASONING_PARSERS, TOOL_CALL_PARSERS

GENERATION_CONFIGS = ("auto", "none")


class ApiSettings(BatchSettings, frozen=True, kw_only=True):
    """What the API offers, and how much a client may take; sizes are bytes, `_s` are seconds."""

    root_path: Annotated[
        str,
        Setting(
            "path prefix under which a proxy publishes this server, whether it strips it or not",
            "API",
            metavar="PREFIX",
        ),
    ] = ""
    strict: Annotated[
        bool, Setting("answer 400 to unknown request fields instead of ignoring and logging them", "API")
    ] = False
    generation_config: Annotated[
        str,
        Setting(
            "source of default sampling parameters: auto = the checkpoint, none = OpenAI's defaults",
            "API",
            choices=GENERATION_CONFIGS,
        ),
    ] = "auto"
    disable_page: Annotated[
        bool, Setting("do not serve the page at /", "API", docs=", see [Page](page.md)")
    ] = False
    disable_docs: Annotated[bool, Setting("do not serve /docs and /openapi.json", "API")] = False
    max_logprobs: Annotated[
        int,
        Setting(
            "maximum number of logprobs per token that a request may ask for",
            "API",
            low=0,
            high=MAX_STEP_LOGPROBS,
            docs=" (`logprobs`, `top_logprobs`, `prompt_logprobs`)",
        ),
    ] = MAX_LOGPROBS
    return_tokens_as_token_ids: Annotated[
        bool,
        Setting('show tokens in logprobs as "token_id:123", unless the request says otherwise', "API"),
    ] = False
    enable_force_include_usage: Annotated[
        bool,
        Setting(
            "end every stream with a usage chunk",
            "API",
            docs=", as if it was requested with `stream_options`",
        ),
    ] = False
    enable_per_request_metrics: Annotated[
        bool,
        Setting("include token timings in each response", "API", docs=", see [API](api.md#responses)"),
    ] = False
    enable_tokenizer_info_endpoint: Annotated[
        bool, Setting("serve /tokenizer_info, which reveals the chat template", "API")
    ] = False
    tool_call_parser: Annotated[
        str,
        Setting(
            "format of the model's tool calls: auto = as its chat template shows, none = refuse tools",
            "API",
            choices=TOOL_CALL_PARSERS,
            docs=", see [Tool calls and reasoning](tool-calls.md)",
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Setting(
            "format of the model's reasoning: auto = as its chat template shows, none = leave it in the text",
            "API",
            choices=REASONING_PARSERS,
        ),
    ] = "auto"
    sse_keep_alive_s: Annotated[
        float,
        Setting(
            "keep-alive interval of idle streams, in seconds; 0 = no keep-alive comments",
            "API",
            low=0,
            high=3600,
            docs="; they come at most a sixteenth of it late",
        ),
    ] = 15.0
    chat_template: Annotated[
        str,
        Setting(
            "template of chats: a jinja2 file or the name of a known format",
            "API",
            metavar="FILE|NAME",
            default="the checkpoint's",
            docs=", see [Chat templates](models.md#chat-templates)",
        ),
    ] = ""
    assets_dir: Annotated[
        str,
        Setting(
            "directory with tokenizer.json and chat template",
            "API",
            metavar="DIR",
            default="the model's directory",
        ),
    ] = ""
    max_body_bytes: Annotated[
        int,
        Setting(
            "maximum size of a request body, e.g. 4M",
            "limits of each frontend",
            metavar="BYTES",
            low=1024,
            high=2**30,
            parse=parse_bytes,
        ),
    ] = 4 * 2**20
    max_body_memory_bytes: Annotated[
        int,
        Setting(
            "maximum size of all request bodies that are arriving or not yet decoded; beyond it 429",
            "limits of each frontend",
            flag="--max-body-memory",
            metavar="BYTES",
            low=1024,
            high=2**40,
            parse=parse_bytes,
            docs="; at least `--max-body-bytes`",
        ),
    ] = 256 * 2**20
    max_answer_values: Annotated[
        int,
        Setting(
            "maximum number of echoed tokens, token ids and logprobs in one response; beyond it 400",
            "limits of each frontend",
            low=1024,
            high=2**30,
            docs=", see [API](api.md#large-responses)",
        ),
    ] = 2**20
    header_timeout_s: Annotated[
        float,
        Setting("seconds a client has to send the headers", "limits of each frontend", low=0.1, high=3600),
    ] = 10.0
    body_timeout_s: Annotated[
        float,
        Setting("seconds a client has to send the body", "limits of each frontend", low=0.1, high=3600),
    ] = 30.0
    write_stall_s: Annotated[
        float,
        Setting(
            "seconds a client may leave sent data unread before its request is aborted",
            "limits of each frontend",
            low=0.1,
            high=3600,
        ),
    ] = 20.0
    max_open_requests: Annotated[
        int,
        Setting(
            "maximum number of requests in flight; beyond it 429",
            "limits of each frontend",
            low=1,
            high=10**6,
        ),
    ] = 4096
    max_connections: Annotated[
        int, Setting("maximum number of open connections", "limits of each frontend", low=1, high=10**6)
    ] = 16384
    max_connections_per_address: Annotated[
        int,
        Setting(
            "maximum number of connections from one client address; 0 = no limit",
            "limits of each frontend",
            low=0,
            high=10**6,
        ),
    ] = 0
    health_timeout_s: Annotated[
        float,
        Setting(
            "seconds an engine has to answer a health probe", "limits of each frontend", low=0.01, high=600
        ),
    ] = 0.8
    shutdown_timeout_s: Annotated[
        float,
        Setting(
            "seconds that requests in flight get to finish after SIGTERM",
            "limits of each frontend",
            low=0,
            high=86400,
            docs="; `splitserve serve` takes `--drain-timeout` unless this is given",
        ),
    ] = 30.0

    def validate(self) -> None:
        """Check every value against its declaration, and those that concern each other.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        check_range("--max-body-memory", self.max_body_memory_bytes, self.max_body_bytes, 2**40)
