"""Which server is measured, and with which requests: flags named as those of `vllm bench serve`."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
from typing import Annotated

from splitserve.client.target.settings import ConnectionSettings
from splitserve.engine_core.settings.setting import Setting

BACKENDS = ("openai", "vllm", "openai-chat")


class ServerSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Settings of the server."""

    backend: Annotated[
        str,
        Setting(
            "what is asked: completions (openai, vllm) or chats (openai-chat)", "server", choices=BACKENDS
        ),
    ] = "openai"
    base_url: Annotated[
        str,
        Setting("the server, or unix:PATH", "server", metavar="URL", default="http://HOST:PORT"),
    ] = ""
    host: Annotated[str, Setting("of the server", "server", metavar="HOST")] = "127.0.0.1"
    port: Annotated[int, Setting("of the server", "server", low=1, high=65535)] = 8000
    endpoint: Annotated[str, Setting("path to ask", "server", metavar="PATH", default="the backend's")] = ""
    served_model: Annotated[
        str,
        Setting(
            "the model: its name at the server, and where its tokenizer is",
            "server",
            flag="--model",
            metavar="NAME",
            default="the server's first one",
        ),
    ] = ""
    served_model_name: Annotated[
        str,
        Setting("its name at the server, if --model is another", "server", metavar="NAME", default="--model"),
    ] = ""
    ready_check_timeout_s: Annotated[
        float,
        Setting(
            "seconds to wait for a server that is not up yet",
            "server",
            flag="--ready-check-timeout-sec",
            low=0,
            high=86400,
        ),
    ] = 0.0

    @property
    def is_chat(self) -> bool:
        """Whether chats are measured, else completions."""
        return self.backend == "openai-chat"

    @property
    def where(self) -> str:
        """The server's URL."""
        return self.base_url or f"http://{self.host}:{self.port}"

    @property
    def path(self) -> str:
        """The path to ask."""
        return self.endpoint or ("/v1/chat/completions" if self.is_chat else "/v1/completions")
