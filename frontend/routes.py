"""The operations that clients call: path, method, what answers, and what the document says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from splitserve.frontend.anthropic.dialect import ANTHROPIC, MessagesError
from splitserve.frontend.anthropic.messages import count_tokens, create_message
from splitserve.frontend.anthropic.schema.events import EVENTS as EVENTS_OF_MESSAGES
from splitserve.frontend.anthropic.schema.request import CountTokensRequest, MessagesRequest
from splitserve.frontend.anthropic.schema.response import Message, TokenCount
from splitserve.frontend.endpoints import Endpoint, with_parameter, without_request
from splitserve.frontend.http.dialect import Dialect
from splitserve.frontend.openai.chat import create_chat_completion
from splitserve.frontend.openai.completions import create_completion
from splitserve.frontend.openai.context import ApiContext
from splitserve.frontend.openai.models import ModelCard, ModelList, get_model, list_models
from splitserve.frontend.openai.schema.chat import ChatChunk, ChatRequest, ChatResponse
from splitserve.frontend.openai.schema.completions import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from splitserve.frontend.openai.schema.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from splitserve.frontend.openai.schema.vectors import (
    ClassifyRequest,
    ClassifyResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingRequest,
    PoolingResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from splitserve.frontend.openai.tokenize import detokenize, tokenize
from splitserve.frontend.openai.tokenizer_info import TokenizerInfo, tokenizer_info
from splitserve.frontend.openai.vectors.classify import classify
from splitserve.frontend.openai.vectors.embeddings import create_embeddings
from splitserve.frontend.openai.vectors.pooling import pool
from splitserve.frontend.openai.vectors.similarity import rerank, score
from splitserve.frontend.openapi import Operation
from splitserve.frontend.responses.compaction.compact import compact_conversation
from splitserve.frontend.responses.context import RESPONSES, ResponsesContext
from splitserve.frontend.responses.input_tokens import InputTokens, count_input_tokens
from splitserve.frontend.responses.kept.handlers import cancel_response, delete_response, get_response
from splitserve.frontend.responses.kept.input_items import list_input_items
from splitserve.frontend.responses.responses import create_response
from splitserve.frontend.responses.schema.compaction import CompactedResponse, CompactionRequest
from splitserve.frontend.responses.schema.events import EVENTS as EVENTS_OF_RESPONSES
from splitserve.frontend.responses.schema.kept_bodies import (
    DEFAULT_PAGE,
    MAX_NUMBER,
    MAX_PAGE,
    DeletedResponse,
    ItemPage,
)
from splitserve.frontend.responses.schema.request import ResponsesRequest
from splitserve.frontend.responses.schema.response import ResponseObject
from splitserve.frontend.responses.socket import open_socket

MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
RESPONSES_PATH = "/v1/responses"

_post_json = partial(Operation, method="POST", errors=(400, 401, 404, 408, 413, 415, 429, 500, 503, 504))


class ApiRoute(Route):
    """A route that tells the layers around it which one it is, as scope["route"]."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare a request with the route."""
        match, matched = super().matches(scope)
        return match, {**matched, "route": self} if matched else matched


def make_routes(operations: Iterable[Operation]) -> list[Route]:
    """Return the routes of operations; where GET is HEAD is, too."""
    return [
        ApiRoute(each.path, each.endpoint, methods=[each.method], include_in_schema=False)
        for each in operations
    ]


def api_operations(context: ApiContext, responses: ResponsesContext) -> list[Operation]:
    """Return what clients call."""
    return [
        *_generation(context),
        *_responses(responses),
        *_vectors(context),
        *_kept_responses(responses),
        *_messages(context),
        *_models(context),
        *_tokens(context),
    ]


def _generation(context: ApiContext) -> list[Operation]:
    generation = partial(_post_json, tag="generation")
    return [
        generation(
            path="/v1/completions",
            name="completions",
            summary="Complete a text",
            endpoint=partial(create_completion, context),
            request=CompletionRequest,
            example={"prompt": "Once upon a time", "max_tokens": 16},
            response=CompletionResponse,
            events=(CompletionChunk,),
        ),
        generation(
            path="/v1/chat/completions",
            name="chat_completions",
            summary="Continue a conversation",
            endpoint=partial(create_chat_completion, context),
            request=ChatRequest,
            example={"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16},
            response=ChatResponse,
            events=(ChatChunk,),
        ),
    ]


def _responses(context: ResponsesContext) -> list[Operation]:
    generation = partial(_post_json, tag="generation")
    return [
        generation(
            path=RESPONSES_PATH,
            name="responses",
            summary="Answer an input",
            endpoint=partial(create_response, context),
            request=ResponsesRequest,
            example={"input": "Hello!", "max_output_tokens": 16},
            response=ResponseObject,
            events=EVENTS_OF_RESPONSES,
        ),
        generation(
            path=f"{RESPONSES_PATH}/input_tokens",
            name="input_tokens",
            summary="Count the tokens of an input",
            endpoint=partial(count_input_tokens, context),
            request=ResponsesRequest,
            example={"input": "Hello!"},
            response=InputTokens,
        ),
        generation(
            path=f"{RESPONSES_PATH}/compact",
            name="compact",
            summary="Summarize a conversation, to go on from the summary",
            endpoint=partial(compact_conversation, context),
            request=CompactionRequest,
            example={"model": "splitserve-demo", "input": "Hello!"},
            response=CompactedResponse,
        ),
        Operation(
            path=RESPONSES_PATH,
            method="GET",
            name="responses",
            tag="generation",
            summary="Answer inputs over a WebSocket, which this opens",
            endpoint=partial(open_socket, context),
            errors=(400, 401, 403, 426),
            is_socket=True,
        ),
    ]


def _vectors(context: ApiContext) -> list[Operation]:
    vectors = partial(_post_json, tag="vectors")
    two_texts = {"text_1": "Once upon a time", "text_2": "Long ago"}
    return [
        vectors(
            path="/v1/embeddings",
            name="embeddings",
            summary="Make vectors of texts",
            endpoint=partial(create_embeddings, context),
            request=EmbeddingRequest,
            example={"input": "Once upon a time"},
            response=EmbeddingResponse,
        ),
        *(
            vectors(
                path=path,
                name="rerank",
                summary="Order documents by how near they are to a query",
                endpoint=partial(rerank, context),
                request=RerankRequest,
                example={
                    "query": "Where is Paris?",
                    "documents": ["Paris is in France.", "Once upon a time"],
                },
                response=RerankResponse,
            )
            for path in ("/rerank", "/v1/rerank", "/v2/rerank")
        ),
        *(
            vectors(
                path=path,
                name="score",
                summary="Tell how near texts are to each other",
                endpoint=partial(score, context),
                request=ScoreRequest,
                example=two_texts,
                response=ScoreResponse,
            )
            for path in ("/score", "/v1/score")
        ),
        vectors(
            path="/pooling",
            name="pooling",
            summary="Pool texts into vectors, one for each text or one for each token",
            endpoint=partial(pool, context),
            request=PoolingRequest,
            example={"input": "Once upon a time"},
            response=PoolingResponse,
        ),
        vectors(
            path="/classify",
            name="classify",
            summary="Tell how probable the labels of texts are",
            endpoint=partial(classify, context),
            request=ClassifyRequest,
            example={"input": "Once upon a time"},
            response=ClassifyResponse,
        ),
    ]


def _kept_responses(context: ResponsesContext) -> list[Operation]:
    kept = partial(Operation, tag="responses", errors=(400, 401, 404, 503))
    path = RESPONSES_PATH + "/{response_id}"

    def endpoint(answer: Callable[[ResponsesContext, Request, str], Awaitable[Response]]) -> Endpoint:
        return with_parameter("response_id", partial(answer, context))

    return [
        kept(
            path=path,
            method="GET",
            name="response",
            summary="Return a response that was kept",
            endpoint=endpoint(get_response),
            response=ResponseObject,
            events=EVENTS_OF_RESPONSES,
            query={
                "stream": {"enum": ["true", "false"], "default": "false"},
                "starting_after": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
            },
        ),
        kept(
            path=path,
            method="DELETE",
            name="response",
            summary="Delete a response that was kept",
            endpoint=endpoint(delete_response),
            response=DeletedResponse,
            errors=(401, 404, 503),
        ),
        kept(
            path=f"{path}/cancel",
            method="POST",
            name="response",
            summary="End a response in the background",
            endpoint=endpoint(cancel_response),
            response=ResponseObject,
            errors=(400, 401, 404, 429, 503),
        ),
        kept(
            path=f"{path}/input_items",
            method="GET",
            name="response",
            summary="List the input of a response that was kept",
            endpoint=endpoint(list_input_items),
            response=ItemPage,
            query={
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE},
                "order": {"enum": ["asc", "desc"], "default": "desc"},
                "after": {"type": "string"},
                "before": {"type": "string"},
            },
        ),
    ]


def _messages(context: ApiContext) -> list[Operation]:
    operation = partial(_post_json, tag="messages", error=MessagesError)
    example = {"messages": [{"role": "user", "content": "Hello!"}]}
    return [
        operation(
            path=MESSAGES_PATH,
            name="messages",
            summary="Continue a conversation, as Anthropic's clients do",
            endpoint=partial(create_message, context),
            request=MessagesRequest,
            example=example | {"max_tokens": 16},
            response=Message,
            events=EVENTS_OF_MESSAGES,
        ),
        operation(
            path=COUNT_PATH,
            name="count_tokens",
            summary="Count the tokens of a conversation",
            endpoint=partial(count_tokens, context),
            request=CountTokensRequest,
            example=example,
            response=TokenCount,
        ),
    ]


def api_dialects() -> dict[str, Dialect]:
    """Return the dialect of each path that has another than OpenAI's."""
    return {MESSAGES_PATH: ANTHROPIC, COUNT_PATH: ANTHROPIC, RESPONSES_PATH: RESPONSES}


def _models(context: ApiContext) -> list[Operation]:
    models = partial(Operation, method="GET", tag="models")
    return [
        models(
            path="/v1/models",
            name="models",
            summary="List the models served now",
            endpoint=without_request(lambda: list_models(context)),
            response=ModelList,
        ),
        models(
            path="/v1/models/{model_id:path}",
            name="model",
            summary="Describe one model",
            endpoint=with_parameter("model_id", lambda _, name: get_model(context, name)),
            response=ModelCard,
            errors=(401, 404, 503),
        ),
    ]


def _tokens(context: ApiContext) -> list[Operation]:
    operations = [
        _post_json(
            path="/tokenize",
            name="tokenize_route",
            tag="tokens",
            summary="Encode a text or a conversation",
            endpoint=partial(tokenize, context),
            request=TokenizeRequest,
            example={"prompt": "Once upon a time"},
            response=TokenizeResponse,
        ),
        _post_json(
            path="/detokenize",
            name="detokenize_route",
            tag="tokens",
            summary="Decode token ids",
            endpoint=partial(detokenize, context),
            request=DetokenizeRequest,
            example={"tokens": [1, 2, 3]},
            response=DetokenizeResponse,
        ),
    ]
    if context.config.enable_tokenizer_info_endpoint:
        operations.append(
            Operation(
                path="/tokenizer_info",
                method="GET",
                name="tokenizer_info_route",
                tag="tokens",
                summary="The tokenizer's configuration",
                endpoint=partial(tokenizer_info, context),
                response=TokenizerInfo,
                errors=(401, 404, 503),
            )
        )
    return operations
