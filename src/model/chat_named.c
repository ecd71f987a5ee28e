#include "model/chat_named.h"
#include "base/checked.h"
#include "model/chat_template.h"

#include <string.h>

/* Turns between <|im_start|> and <|im_end|>. */
#define CHATML_TURNS                                                                               \
    "{%- for message in messages %}"                                                               \
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"                \
    "{%- endfor %}"
#define CHATML_PROMPT "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"

/* Answers to the last question keep their thoughts; earlier answers lose them. */
#define QWEN3_TURNS                                                                                \
    "{%- set ns = namespace(question=messages|length - 1, found=false) %}"                         \
    "{%- for message in messages[::-1] %}"                                                         \
    "{%- if not ns.found and message.role == 'user' and not (message.content.startswith("          \
    "'<tool_response>') and message.content.endswith('</tool_response>')) %}"                      \
    "{%- set ns.found = true %}{%- set ns.question = messages|length - 1 - loop.index0 %}"         \
    "{%- endif %}{%- endfor %}"                                                                    \
    "{%- for message in messages %}"                                                               \
    "{%- set content = message.content %}{%- set thoughts = '' %}"                                 \
    "{%- if message.role == 'assistant' %}"                                                        \
    "{%- if message.reasoning_content is string %}"                                                \
    "{%- set thoughts = message.reasoning_content %}"                                              \
    "{%- elif '</think>' in content %}"                                                            \
    "{%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1]"            \
    ".lstrip('\n') %}"                                                                             \
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"                  \
    "{%- if loop.index0 > ns.question and (loop.last or thoughts) %}"                              \
    "{%- set content = '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + "                   \
    "content.lstrip('\n') %}{%- endif %}{%- endif %}"                                              \
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"                        \
    "{%- endfor %}"

#define LLAMA3_TURN                                                                                \
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content|trim + "  \
    "'<|eot_id|>' }}"
#define LLAMA3_PROMPT                                                                              \
    "{%- if add_generation_prompt %}"                                                              \
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"

/* A system message first, then user and assistant in turn. */
#define INST_HEAD                                                                                  \
    "{%- set system = '' %}{%- set turns = messages %}"                                            \
    "{%- if messages[0].role == 'system' %}"                                                       \
    "{%- set system = messages[0].content %}{%- set turns = messages[1:] %}{%- endif %}"           \
    "{{ bos_token }}{%- for message in turns %}"                                                   \
    "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) or "                                \
    "message.role not in ['user', 'assistant'] %}"                                                 \
    "{{ raise_exception('want user and assistant in turn') }}{%- endif %}"
#define MISTRAL_TURN(where, open, close, answer)                                                   \
    "{%- if message.role == 'user' %}"                                                             \
    "{{ '" open "' + (system + '\n\n' if system and " where " else '') + message.content + "       \
    "'" close "' }}{%- else %}{{ " answer " + eos_token }}{%- endif %}{%- endfor %}"

static const struct chat_named named[] = {
    {"chatml", "", "<|im_end|>", CHATML_TURNS CHATML_PROMPT},
    {"qwen2", "", "<|im_end|>",
     "{%- if messages[0].role != 'system' %}"
     "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}" CHATML_TURNS
         CHATML_PROMPT},
    {"qwen3", "", "<|im_end|>",
     QWEN3_TURNS "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
                 "{%- if enable_thinking is defined and enable_thinking is false %}"
                 "{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"},
    {"llama2", "<s>", "</s>",
     "{%- set bos = bos_token %}{%- set bos_token = '' %}" INST_HEAD
     "{%- if message.role == 'user' %}"
     "{%- set content = ('<<SYS>>\n' + system + '\n<</SYS>>\n\n' if system and loop.first else '')"
     " + message.content %}{{ bos + '[INST] ' + content.strip() + ' [/INST]' }}"
     "{%- else %}{{ ' ' + message.content.strip() + ' ' + eos_token }}{%- endif %}{%- endfor %}"},
    {"llama3", "<|begin_of_text|>", "<|eot_id|>",
     "{{ bos_token }}{%- for message in messages %}" LLAMA3_TURN "{%- endfor %}" LLAMA3_PROMPT},
    {"llama3.1", "<|begin_of_text|>", "<|eot_id|>",
     "{%- if date_string is not defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
     "{{ bos_token }}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
     "{{ 'Cutting Knowledge Date: December 2023\nToday Date: ' + date_string + '\n\n' }}"
     "{%- if messages[0].role == 'system' %}{{ messages[0].content|trim }}"
     "{%- set messages = messages[1:] %}{%- endif %}{{ '<|eot_id|>' }}"
     "{%- for message in messages %}" LLAMA3_TURN "{%- endfor %}" LLAMA3_PROMPT},
    {"mistral", "<s>", "</s>",
     INST_HEAD MISTRAL_TURN("loop.last", "[INST] ", "[/INST]", "' ' + message.content|trim")},
    {"mistral-v1", "<s>", "</s>",
     INST_HEAD MISTRAL_TURN("loop.first", " [INST] ", " [/INST]", "' ' + message.content")},
    {"mistral-tekken", "<s>", "</s>",
     INST_HEAD MISTRAL_TURN("loop.last", "[INST]", "[/INST]", "message.content")},
};

const struct chat_named *chat_named_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(named); i++)
        if (strcmp(named[i].name, name) == 0) return &named[i];
    return NULL;
}

const char *chat_template_names(void) {
    return "chatml, qwen2, qwen3, llama2, llama3, llama3.1, mistral, mistral-v1, mistral-tekken";
}
