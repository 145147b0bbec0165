"""Every error that can cross a process or reach a client, with code and HTTP status; and the exit codes."""

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

    `code` is stable and machine-readable, `status` the HTTP status a frontend answers with.
    """

    code = "internal_error"
    status = 500


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


class QueueTimeoutError(SplitServeError):
    """The engine ended this request because it had waited for as long as it was allowed to."""

    code = "queue_timeout"
    status = 503


class EngineRequestError(SplitServeError):
    """The engine ended this one request because of a fault that belongs to it."""

    code = "request_failed"


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
