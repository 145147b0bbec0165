"""Chat templates of the families in use, written for these tests in the style each family has."""

CHATML = (
    "{%- if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}\n"
    "    {%- if loop.index0 > 40 %}{% break %}{% endif %}\n"
    "    {{- '<|im_start|>' + message.role + '\n' + message['content'] + '<|im_end|>' + '\n' }}\n"
    "{%- endfor %}\n"
    "{%- if tools %}\n    {%- for tool in tools %}\n    {{- tool | tojson(indent=2) }}\n    {%- endfor %}\n"
    "{%- endif %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n{%- endif %}\n"
)

LLAMA3 = (
    "{{- bos_token }}\n"
    "{#- what follows is the system turn #}\n"
    "{%- set ns = namespace(seen=false) %}\n"
    "{%- for message in messages %}\n"
    "    {%- set ns.seen = true %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim"
    " + '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt and ns.seen %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\n"
    "{%- endif %}\n"
)

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)

THINKING = (
    "{%- for message in messages %}"
    "{%- set content = message.content %}"
    "{%- if message.role == 'assistant' and '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<tool_call>' + call.function.name + ' ' + call.function.arguments | tojson + '</tool_call>' }}"
    "{%- endfor %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)

PARTS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}{{ '<|im_end|>' }}{% endfor %}"
)

PARTS_ONLY = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{{ '<|im_end|>' }}{% endfor %}"
)

# DeepSeek-R1's distills: a call is looked for only where content is null, and its arguments are text.
NULL_AND_TEXT = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' and message['content'] is none %}"
    "{%- for tool in message['tool_calls'] %}"
    "{{- '<call>' + tool['function']['name'] + '\n' + tool['function']['arguments'] + '</call>' }}"
    "{%- endfor %}"
    "{%- else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}{% endif %}"
    "{%- endfor %}"
)

# Prints content before the calls, whatever it is.
EMPTY_AND_OBJECTS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>{% endfor %}"
    "<|im_end|>{% endfor %}"
)

# Qwen3-Coder's way: a tag for each argument.
ARGUMENT_TAGS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}<function={{ call.function.name }}>"
    "{% for name, value in call.function.arguments|items %}<parameter={{ name }}>{{ value }}</parameter>"
    "{% endfor %}</function>{% endfor %}<|im_end|>{% endfor %}"
)

# Only the user's content may be a list, as in some models that read images.
USER_PARTS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'user' and message.content is not string %}"
    "{% for part in message.content %}{{ part.text }}{% endfor %}"
    "{% else %}{{ message.content | trim }}{% endif %}<|im_end|>{% endfor %}"
)

# As Mistral Small has it for system messages.
FIRST_PART = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{{ message.content if message.content is string else message.content[0].text }}<|im_end|>{% endfor %}"
)

# In the style of gpt-oss: beside a call there may be content or thinking, and is only thought in any case.
HARMONY = (
    "{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{%- if tools %}{{ '<|start|>developer<|message|># Tools\n' }}"
    "{%- for tool in tools %}{{ 'type ' + tool.function.name + ' = () => any;\n' }}{% endfor %}"
    "{{- '<|end|>' }}{% endif %}"
    "{%- set last = namespace(name='') %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' and 'tool_calls' in message %}"
    "{%- if message.content and message.thinking %}{{ raise_exception('Only one of the two!') }}{% endif %}"
    "{%- set thought = message.content or message.thinking %}"
    "{%- if thought %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + thought + '<|end|>' }}"
    "{%- endif %}"
    "{%- set function = message.tool_calls[0].function %}{% set last.name = function.name %}"
    "{{- '<|start|>assistant to=functions.' + function.name + '<|channel|>commentary json<|message|>' }}"
    "{{- function.arguments | tojson + '<|call|>' }}"
    "{%- elif message.role == 'assistant' %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}"
    "{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{%- elif message.role == 'tool' %}"
    "{{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}"
    "{{- message.content | tojson + '<|end|>' }}"
    "{%- else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|start|>assistant{% endif %}"
)
