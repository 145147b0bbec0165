"""Templates of well-known formats, for checkpoints that come without one; and which template a model gets.

Each takes messages of the roles system, user and assistant, system only at the beginning, and refuses others.
They know no tools. `qwen3-reranker` is of two texts instead, see frontend.text.chat.pair_template.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from splitserve.engine_core.checkpoint.files import read_text
from splitserve.engine_core.errors import ConfigError, ModelLoadError

RERANKER: Final = "qwen3-reranker"

# Sets `said` to the system message or "", and `turns` to the messages after it, of user and assistant.
_TURNS = (
    "{%- if messages[0].role == 'system' -%}"
    "{%- set said, turns = messages[0].content, messages[1:] -%}"
    "{%- else -%}{%- set said, turns = '', messages -%}{%- endif -%}"
    "{%- for message in turns -%}{%- if message.role not in ('user', 'assistant') -%}"
    "{{ raise_exception('this chat template has no role ' ~ message.role ~ ' in this place') }}"
    "{%- endif -%}{%- endfor -%}"
)


def _turns(user: str, assistant: str, *, before: str = "", system: str = "", opening: str = "") -> str:
    """Return a template: each part is jinja2 in which `text` is the content of its message.

    Args:
        user: a turn of the user.
        assistant: one of the assistant.
        before: of all.
        system: the system message, if there is one.
        opening: of the answer.
    """
    return (
        f"{_TURNS}{before}{{%- if said -%}}{{%- set text = said -%}}{system}{{%- endif -%}}"
        "{%- for message in turns -%}{%- set text = message.content -%}"
        f"{{%- if message.role == 'user' -%}}{user}{{%- else -%}}{assistant}{{%- endif -%}}{{%- endfor -%}}"
        f"{{%- if add_generation_prompt -%}}{opening}{{%- endif -%}}"
    )


# Of formats that put the system message into the user's first turn.
_FIRST = "{%- if loop.first and said -%}"

TEMPLATES: Final[dict[str, str]] = {
    "alpaca": _turns(
        "{{- '### Instruction:\\n' ~ text ~ '\\n\\n' }}",
        "{{- '### Response:\\n' ~ text ~ eos_token ~ '\\n\\n' }}",
        before="{{- bos_token }}{%- if not said -%}{{- 'Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\\n\\n' }}{%- endif -%}",
        system="{{- text ~ '\\n\\n' }}",
        opening="{{- '### Response:\\n' }}",
    ),
    "chatml": _turns(
        "{{- '<|im_start|>user\\n' ~ text ~ '<|im_end|>\\n' }}",
        "{{- '<|im_start|>assistant\\n' ~ text ~ '<|im_end|>\\n' }}",
        system="{{- '<|im_start|>system\\n' ~ text ~ '<|im_end|>\\n' }}",
        opening="{{- '<|im_start|>assistant\\n' }}",
    ),
    "gemma": _turns(
        "{{- '<start_of_turn>user\\n' }}" + _FIRST + "{{- said ~ '\\n\\n' }}{%- endif -%}"
        "{{- text ~ '<end_of_turn>\\n' }}",
        "{{- '<start_of_turn>model\\n' ~ text ~ '<end_of_turn>\\n' }}",
        before="{{- bos_token }}",
        opening="{{- '<start_of_turn>model\\n' }}",
    ),
    "llama-2": _turns(
        "{{- bos_token ~ '[INST] ' }}" + _FIRST + "{{- '<<SYS>>\\n' ~ said ~ '\\n<</SYS>>\\n\\n' }}"
        "{%- endif -%}{{- text ~ ' [/INST]' }}",
        "{{- ' ' ~ text ~ ' ' ~ eos_token }}",
    ),
    "llama-3": _turns(
        "{{- '<|start_header_id|>user<|end_header_id|>\\n\\n' ~ text ~ '<|eot_id|>' }}",
        "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' ~ text ~ '<|eot_id|>' }}",
        before="{{- bos_token }}",
        system="{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' ~ text ~ '<|eot_id|>' }}",
        opening="{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}",
    ),
    "mistral": _turns(
        "{{- '[INST] ' }}" + _FIRST + "{{- said ~ '\\n\\n' }}{%- endif -%}{{- text ~ ' [/INST]' }}",
        "{{- ' ' ~ text ~ eos_token }}",
        before="{{- bos_token }}",
    ),
    "phi-3": _turns(
        "{{- '<|user|>\\n' ~ text ~ '<|end|>\\n' }}",
        "{{- '<|assistant|>\\n' ~ text ~ '<|end|>\\n' }}",
        system="{{- '<|system|>\\n' ~ text ~ '<|end|>\\n' }}",
        opening="{{- '<|assistant|>\\n' }}",
    ),
    "vicuna": _turns(
        "{{- 'USER: ' ~ text ~ ' ' }}",
        "{{- 'ASSISTANT: ' ~ text ~ eos_token }}",
        before="{{- bos_token }}{%- if not said -%}{{- 'A chat between a curious user and an artificial "
        "intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user\\'s "
        "questions. ' }}{%- endif -%}",
        system="{{- text ~ ' ' }}",
        opening="{{- 'ASSISTANT:' }}",
    ),
    "zephyr": _turns(
        "{{- '<|user|>\\n' ~ text ~ eos_token ~ '\\n' }}",
        "{{- '<|assistant|>\\n' ~ text ~ eos_token ~ '\\n' }}",
        system="{{- '<|system|>\\n' ~ text ~ eos_token ~ '\\n' }}",
        opening="{{- '<|assistant|>\\n' }}",
    ),
    RERANKER: (
        "{%- set all = namespace(system='Given a web search query, retrieve relevant passages that answer "
        "the query', query='', document='') -%}"
        "{%- for message in messages -%}"
        "{%- if message.role == 'system' -%}{%- set all.system = message.content -%}"
        "{%- elif message.role == 'query' -%}{%- set all.query = message.content -%}"
        "{%- elif message.role == 'document' -%}{%- set all.document = message.content -%}{%- endif -%}"
        "{%- endfor -%}"
        "{{- '<|im_start|>system\\nJudge whether the Document meets the requirements based on the Query and "
        'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\\n'
        "<|im_start|>user\\n<Instruct>: ' ~ all.system ~ '\\n<Query>: ' ~ all.query ~ '\\n<Document>: ' "
        "~ all.document ~ '<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}"
    ),
}
"""By the name that --chat-template takes."""


def find_template(name: str) -> str:
    """Return the source of a template.

    Args:
        name: one of TEMPLATES, or the path of a jinja2 file.

    Raises:
        ConfigError: it is neither.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]
    try:
        source = read_text(Path(name))
    except ModelLoadError as error:
        raise ConfigError(f"--chat-template: {error}") from None
    if source is None:
        raise ConfigError(
            f"--chat-template must be a file or one of {', '.join(TEMPLATES)}, got {name[:200]!r}"
        )
    return source
