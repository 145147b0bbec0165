"""Every error that can cross a process or reach a client, with code and HTTP status; and the exit codes.

What a fault ends, at most. Nothing else may end more than the request that it belongs to.

    raised as                       ends
    InvalidRequestError             its request
    ContextLengthError              its request
    OverloadedError                 its request, or its connection
    EngineUnavailableError          its request, once nobody has taken it over in time
    EngineAsleepError               its request, at once
    QueueTimeoutError               its request
    EngineRequestError              its request: a NaN in its logits, an exception in sampling, no memory even
                                    for smaller steps (a RowError names the code)
    UnsafeRequestError              its request
    ProtocolError                   its message; of a worker, the worker
    DeviceMemoryError               its step, which is tried again smaller
    WorkerError                     all ranks of the worker: lost, late, or of another mind than the engine.
                                    Also the engine if that comes before the first worker is ready, or again
                                    and again
    RankLostError                   likewise
    RuntimeError of torch, kernels  the worker: nobody knows what the device has done
    ModelLoadError                  the engine
    ConfigError                     the process that was configured
    IntegrityError                  the engine, whose bookkeeping can no longer be trusted
    any other exception             its row, request, message or stream; in the busy loop itself, the engine

A worker that ended is started again by its engine, which keeps its requests; an engine by its supervisor.
"""

from __future__ import annotations

# What every command of this project ends with.
EXIT_OK = 0
EXIT_FAILED = 1
# A wrong flag (the code argparse uses), and a checkpoint that cannot be served: retrying is pointless.
EXIT_CONFIG = 2
EXIT_MODEL = 3
EXIT_WORKER = 4


class SplitServeError(Exception):
    """Base of all errors of this project.

    `code` is stable and machine-readable, `status` the HTTP status a frontend answers with, `param` the
    dotted path of the request field it is about.
    """

    code = "internal_error"
    status = 500
    param: str | None = None


class ConfigError(SplitServeError):
    """A flag or configuration value is out of range or does not fit the others."""

    code = "invalid_config"


class ModelLoadError(SplitServeError):
    """A checkpoint cannot be served: unknown architecture, missing, truncated or misshapen file."""

    code = "model_load_failed"


class InvalidRequestError(SplitServeError):
    """A request field is wrong; `param` is its dotted path, the message names the allowed range."""

    code = "invalid_value"
    status = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class ContextLengthError(InvalidRequestError):
    """Prompt and requested tokens do not fit the model's context."""

    code = "context_length_exceeded"

    @classmethod
    def of(
        cls,
        max_model_len: int,
        num_prompt_tokens: int,
        num_asked: int | None,
        param: str | None = None,
        what: str = "prompt",
    ) -> ContextLengthError:
        """Make it in OpenAI's words, which clients look for to cut a conversation and try again.

        Args:
            max_model_len: tokens that fit.
            num_prompt_tokens: of the prompt.
            num_asked: output tokens that were asked for; None for any number from one.
            param: the field that asks for too much.
            what: the prompt is made of: "prompt" or "messages".
        """
        limit = f"This model's maximum context length is {max_model_len} tokens. However, "
        if num_prompt_tokens < max_model_len and num_asked is not None:
            return cls(
                f"{limit}you requested {num_prompt_tokens + num_asked} tokens ({num_prompt_tokens} "
                f"in the {what}, {num_asked} in the completion). "
                f"Please reduce the length of the {what} or completion.",
                param,
            )
        rest = "" if num_prompt_tokens > max_model_len else ", and the completion needs at least one"
        return cls(
            f"{limit}your {what} resulted in {num_prompt_tokens} tokens{rest}. "
            f"Please reduce the length of the {what}.",
            param,
        )

    @classmethod
    def of_text(
        cls, max_model_len: int, size: str, limit: str, what: str = "prompt", param: str = ""
    ) -> ContextLengthError:
        """Make it for a text that cannot fit, whatever its tokens are.

        Args:
            max_model_len: tokens that fit.
            size: of the text, with its unit.
            limit: of what can fit, likewise.
            what: the text is: "prompt", "input" or "messages".
            param: the field that asks for too much; "" if it has that name.
        """
        return cls(
            f"This model's maximum context length is {max_model_len} tokens. However, your {what} of {size} "
            f"cannot fit, the limit is {limit}. Please reduce the length of the {what}.",
            param or what,
        )


class OverloadedError(SplitServeError):
    """A stated bound (queue, memory, connections) is hit; the client may retry later.

    `retry_after_s` is the wait that the engine suggests, 0 if it has no idea.
    """

    code = "overloaded"
    status = 429
    retry_after_s: float = 0.0


class EngineUnavailableError(SplitServeError):
    """No engine-core is connected and ready to take this request."""

    code = "engine_unavailable"
    status = 503


class EngineAsleepError(EngineUnavailableError):
    """All engines that could take this request sleep until they are woken up."""

    code = "engine_asleep"


class QueueTimeoutError(SplitServeError):
    """The engine ended this request because it had waited for as long as it was allowed to."""

    code = "queue_timeout"
    status = 503


class EngineRequestError(SplitServeError):
    """The engine ended this one request because of a fault that belongs to it."""

    code = "request_failed"


class UnsafeRequestError(EngineRequestError):
    """Engines or workers died of this request as far as can be told, so it is not tried again."""

    code = "request_unsafe"


class ProtocolError(SplitServeError):
    """A peer sent bytes that are not a valid message; counted and logged once per peer, never fatal."""

    code = "protocol_error"


class WorkerError(SplitServeError):
    """A worker process failed or was lost; ends the engine-core's step loop."""

    code = "worker_failed"


class RankLostError(WorkerError):
    """A rank waited in vain for another: it tells that one is lost, and seldom which."""

    code = "rank_lost"


class DeviceMemoryError(SplitServeError):
    """A step did not fit a worker's memory; the engine tries again with less, then ends the request."""

    code = "out_of_memory"
    status = 503


class IntegrityError(SplitServeError):
    """A check_integrity() found broken bookkeeping; always a bug of ours, the message names the facts."""

    code = "integrity_error"
