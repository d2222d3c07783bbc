"""Chat templates in the manner of well-known model families, written for these tests.

Each follows the public description of its family's prompt: which markers, where BOS stands, what is stripped, and what
it refuses. None of them is a copy of a model's file.
"""

from __future__ import annotations

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# BOS first, a header of two markers per message, contents stripped, a date in the system message.
LLAMA_3 = """\
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today is ' + strftime_now('%Y') + '.\\n\\n' }}
{%- if tools is not none %}{{- tools | tojson }}{%- endif %}
{{- system_message }}{{- '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# The system message lives inside the first user message; no generation prompt; a space on both sides of an answer.
LLAMA_2 = """\
{%- if messages[0]['role'] == 'system' -%}
    {%- set loop_messages = messages[1:] -%}
    {%- set system_message = messages[0]['content'] -%}
{%- else -%}
    {%- set loop_messages = messages -%}
    {%- set system_message = false -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
    {%- endif -%}
    {%- if loop.index0 == 0 and system_message -%}
        {%- set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] -%}
    {%- else -%}
        {%- set content = message['content'] -%}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' -}}
    {%- elif message['role'] == 'assistant' -%}
        {{- ' ' + content.strip() + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""

# BOS once, answers unstripped and closed by EOS; the last user message carries the system text.
MISTRAL = """\
{{- bos_token }}
{%- set ns = namespace(system='', last=0) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{%- set ns.system = message['content'] %}{%- continue %}{%- endif %}
    {%- if message['role'] == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' }}
        {%- if loop.index0 == ns.last and ns.system %}{{- ns.system + '\\n\\n' }}{%- endif %}
        {{- message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- elif message['role'] != 'system' %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""

# The assistant is called "model"; no system role.
GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{%- endif %}
"""

# Thinking of earlier answers is dropped from the prompt.
REASONING = """\
{%- for message in messages %}
    {%- set content = message['content'] %}
    {%- if message['role'] == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# White space exactly as written matters here: comments, block trimming, the training marker.
LAYOUT = """\
{# a comment #}
  {% for message in messages %}
[{{ message.role }}]
    {% generation %}
  {{ message.content }}
    {% endgeneration %}
  {% endfor %}
  {% if add_generation_prompt %}
[assistant]
  {% endif %}
{{ {'text': 'ä<b>', 'n': [1, 2]} | tojson }}
{{ messages | length | tojson(indent=2) }}
"""

ALL = {
    "chatml": CHATML,
    "llama-3": LLAMA_3,
    "llama-2": LLAMA_2,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "reasoning": REASONING,
    "layout": LAYOUT,
}
