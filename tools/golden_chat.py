#!/usr/bin/env python3
"""Makes tests/golden/chat: what jinja2, set up as transformers sets it up, gives for the templates there.

    python3 tools/golden_chat.py [--fuzz N]        needs: jinja2 (tools/chat_oracle.py says how it is set up)

*.jinja          templates in the shape of those that models come with, written here
conversations.jsonl  what they are tried on
cases.jsonl      {"template": name, "conversation": line from 0, "text"}; instead of the text "error": true where jinja2 raises
                 an exception
constructs.jsonl {"program": a template, "conversation": JSON in a string, "text" or "error"}: CONSTRUCTS below, and of the random templates of
                 fuzz_chat.py those of N seeds that jinja2 renders
strftime_now says 2024-07-26 12:00 (UTC). Same input, same bytes.
"""
import argparse
import datetime
import json
import pathlib
import random
import re
import warnings

import chat_oracle
import fuzz_chat

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "chat"
chat_oracle.NOW = datetime.datetime(2024, 7, 26, 12, 0)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a \"town\" <é>",
    "parameters": {"type": "object", "required": ["town"], "properties": {
        "town": {"type": "string", "description": "which town", "enum": ["Ulm", "Köln"]},
        "days": {"type": ["integer", "null"], "default": 3},
        "where": {"type": "object", "properties": {"at": {"type": "array", "items": {"type": "number"}}, "label": {"type": "string"}},
                  "required": ["at"]},
        "more": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "boolean"}}}}},
    "return": {"type": "string"}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(arguments, name="weather", number="call00001"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def talks():
    """Conversations without tools."""
    s, u, a = (lambda c, r=r, **k: say(r, c, **k) for r in ("system", "user", "assistant"))
    return [
        [u("Hello")], [s("Be brief."), u("Hello")], [u("Hello"), a("Hi."), u("Who are you?")],
        [s("Be brief."), u("One"), a("1"), u("Two"), a("2"), u("Three")], [u("One"), a("1")],
        [s("  spaced \n"), u("\n padded \t\u00a0"), a("  answer\x1c \n\n"), u(" q ")], [u(""), a(""), u("")], [s(""), u("x")],
        [u("Ünï 日本 🌾\u2028\n\nlines\n")], [u("q"), a("<think>\nwhy\n</think>\n\nso"), u("r")],
        [u("q"), a("<think>\n\nwhy\n\n</think>\n\n\nso")], [u("q"), a("<think>a</think>b</think>\nc"), u("r"), a("<think>x<think>\ny\n</think>z")],
        [u("q"), a("</think>"), u("r"), a("plain")], [u("q"), a("<think>open"), u("r")],
        [u("q"), a("\n\n<think>\na\n</think>\nb"), u("<tool_response>\n1\n</tool_response>"), a("<think>\nc\n</think>\n\nd")],
        [u("q"), a("1"), u("<tool_response>x"), a("2")], [s("only")], [a("first")], [s("a"), a("b")], [u("a"), u("b")],
        [u("a"), a("b"), a("c")], [u("a"), s("late"), u("b")], [s("a"), s("b"), u("c")], [u("x <|im_end|> [/INST] </s> y")],
        [u("{{ x }} {% y %} ' \" \\n")], [u("q"), a("so", reasoning_content="for\na reason\n"), u("r"), a("and", reasoning="more")],
        [u([{"type": "text", "text": " part "}, {"type": "image"}]), a([{"type": "text", "text": "seen"}]), u("z")],
        [u("q"), a(None), u("r")], [say("developer", "Rules"), u("q")],
    ]


def tool_talks():
    u, a, t = (lambda c, r=r, **k: say(r, c, **k) for r in ("user", "assistant", "tool"))
    paris = call({"town": "Köln", "days": 2, "list": [1, 2.5, None, True, 1e30, {"k": "v\u2028"}], "big": 12345678901234567890123})
    return [
        [u("Sun?")], [say("system", "Be brief."), u("Sun?")],
        [u("Sun?"), a(None, tool_calls=[paris]), t("sunny", tool_call_id="call00001", name="weather"), u("And then?")],
        [u("Sun?"), a("", tool_calls=[paris]), t('{"c": 3}', tool_call_id="call00001"), a("It is.")],
        [u("Sun?"), a("Let me see.", tool_calls=[paris, call("{\"x\": 1}", "clock", "call00002")]), t("1", tool_call_id="call00001"),
         t("2", tool_call_id="call00002"), a("ok"), u("more")],
        [u("Sun?"), a(None, tool_calls=[call({}, "clock")], reasoning_content="hm"), t("noon", tool_call_id="call00001")],
        [u("Sun?"), a("", tool_calls=[call({"q": "x", "p": "y"}, "search", "short")]), t({"a": [1]}, tool_call_id="short")],
    ]


def conversations():
    """(conversation, whether it has to do with tools or arguments)"""
    out = []
    for i, messages in enumerate(talks()):
        for prompt in (True, False) if i % 3 == 0 else (i % 2 == 0,):
            out.append(({"messages": messages, "add_generation_prompt": prompt}, False))
    for i, messages in enumerate(tool_talks()):
        for tools in ([WEATHER], None) if i % 2 else ([WEATHER, CLOCK], []):
            out.append(({"messages": messages, "tools": tools, "add_generation_prompt": i % 2 == 0}, True))
    for kwargs in ({"enable_thinking": False}, {"enable_thinking": True}, {"date_string": "01 Feb 2025"}, {"reasoning_effort": "high"},
                   {"builtin_tools": ["search", "code_interpreter"]}, {"tools_in_user_message": False}, {"bos_token": "<b>"}):
        for messages in (talks()[1], talks()[25], tool_talks()[6]):
            out.append(({"messages": messages, "tools": [CLOCK], "add_generation_prompt": True, "chat_template_kwargs": kwargs}, True))
    out.append(({"messages": talks()[0], "documents": [{"title": "T\"", "text": "of the mill"}, {"title": "U"}],
                 "add_generation_prompt": True}, True))
    return out


# One line each: what a template observes of Jinja and of Python.
CONSTRUCTS = r"""
{% set x = 1 %}{% for i in range(3) %}{{ x }}{% set x = i %}{% endfor %}{{ x }}
{% for i in [1] %}{{ late }}{% endfor %}{% set late = 2 %}{{ late }}
{% if s %}{% set s = s ~ '!' %}{% endif %}{{ s }}{% if never %}{% set n = 5 %}{% endif %}{{ n }}
{% macro f() %}{{ y }}{% endmacro %}{% set y = 1 %}{{ f() }}{% set y = 2 %}{{ f() }}
{% for i in [1, 2] %}{% macro g() %}{{ i }}{% endmacro %}{{ g() }}{% endfor %}
{% for x in xs if x != 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {{ loop.last }};{% else %}none{% endfor %}
{% for x in xs %}{% continue %}{% else %}all were skipped{% endfor %}{% for x in [] %}{% else %}E{% endfor %}
{% for x in xs %}{% if loop.index == 2 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}
{% for k, v in d.items() %}{{ loop.first }}{{ k }}={{ v }}{{ loop.cycle('a', 'b') }}{{ loop.changed(v) }} {% endfor %}
{{ d.items is defined }} {{ d['items'] }} {{ d.keys() | list }} {{ messages[0].items is callable }} {{ {}['get'] is defined }}
{{ d.pop is defined }} {{ xs.append is defined }} {{ d.nothing }}{{ d.nothing is undefined }}{{ none.x is defined }}
{{ 'a' 'b' ~ 1 + 2 }} {{ 1 if false }}| {{ not true == false }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 1 / 2 }}
{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 == true }} {{ 'ab' in 'cabd' }} {{ 'x' not in d }}
{{ [1, 2.0, 'a', none, true, [], {}, (1,), ()] }} {{ {'k': 'it\'s', 2: "q\"", none: '\n\t\\'} }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.125 }} {{ 1e15 }}
{{ "é日\u2028\x00\u200b" | list }} {{ ["é日\u2028\x00\u200b\U0001f600"] }}
{{ xs[1:] }} {{ xs[::-1] }} {{ 'héllo'[1:-1] }} {{ 'héllo'[::-2] }} {{ range(10)[2:8:3] }} {{ (1, 2, 3)[:2] }} {{ xs[9:] }} {{ xs[-9:2] }}
{{ d | tojson }} {{ d | tojson(indent=2) }} {{ xs | tojson(separators=(',', ':')) }} {{ {'é': '\u007f<>&\'"\n'} | tojson }} {{ 'é😀' | tojson(ensure_ascii=true) }}
{{ {'b': [], 'a': {}, 'c': [{}]} | tojson(indent=1, sort_keys=true) }} {{ 1e400 | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 6} | tojson }}
{%- set ns = namespace(a=1, b=[]) -%} {{ ns.a }}{% set ns.a = ns.a + 1 %}{{ ns.a }} {{ ns }} {{ ns.zz is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b), c = (3, 4), 5 %}{{ a }}{{ b }}{{ c }}{% set x = 1, %}{{ x }}
{% set x %}  a {{ 1 + 1 }} {% endset %}[{{ x }}]{% set x | trim | upper %} b {% endset %}[{{ x }}]{% filter replace('a', 'o') %}banana{% endfilter %}
{% macro m(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }} {{ m(1, c=3, z=4) }} {{ m(1, 2, 3, 4) }} {{ m.name is defined }}
{% macro w(n) %}<{{ caller(n) }}>{% endmacro %}{% call(i) w(2) %}{{ i }}{{ s }}{% endcall %}{% call w(1) %}x{% endcall %}
{% macro down(n) %}{{ n }}{% if n %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(5) }} {{ down }}
{% with q = 1, r = 2 %}{{ q + r }}{% endwith %}{{ q is defined }}{% print 1, 'b' %}
{% raw %}{{ not }} {% this %}{% endraw %} {# gone #}|{#- gone -#}  |{%- raw -%}  x  {%- endraw -%}  |
  {% if true %}  a  {% endif %}  b  {%- if true -%}  c  {%- endif -%}  d  {%+ if true +%}  e  {% endif %}
{{ '  a ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 'aXb' | lower | upper | title | capitalize }}|{{ 'a-b (c) [d' | title }}|{{ "it's ALL" | title }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(none, 1) }} {{ 'a\nb\r\nc'.splitlines() }} {{ 'a.b.c'.partition('.') }}
{{ 'abc'.startswith(('x', 'a')) }} {{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('é') }} {{ 'aéa'.count('a') }} {{ '7'.zfill(3) }} {{ 'ab'.center(7, '*') }} {{ '-'.join(['a', 'b']) }}
{{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc' | replace('', '-') }} {{ 'Hello'.swapcase is defined }} {{ 'ab'.removeprefix('a') }} {{ 'x'.isalpha() }} {{ 'ÄÖ'.lower() }} {{ 'straße'.title() }}
{{ '%s %d %5.2f %-4s| %(a)s' | replace('%(a)s', '') % ('x', 3, 2.5, 'y') }} {{ '%(a)s' % {'a': 1} }} {{ '{} {1}' | replace('{1}', '{}') | string }} {{ '{0} {x} {0!r}'.format('q', x=1) }}
{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ xs | map('string') | list }} {{ xs | select('odd') | list }} {{ mixed | reject('none') | list }}
{{ xs | sort }} {{ ['b', 'A', 'a'] | sort }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true, reverse=true) }} {{ d | dictsort }} {{ xs | min }} {{ xs | max }} {{ xs | sum }} {{ [1, 1.0, 'A', 'a'] | unique | list }}
{{ xs | first }} {{ xs | last }} {{ [] | first }} {{ 'abc' | reverse }} {{ xs | reverse | list }} {{ xs | batch(2) | list }} {{ xs | slice(2) | list }} {{ xs | join }} {{ none | default('d') }} {{ '' | default('d', true) }} {{ nope | d(1) }}
{{ '42' | int }} {{ '4x' | int(7) }} {{ '3.9' | int }} {{ 'ff' | int(base=16) }} {{ '1e3' | float }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.345 | round(2) }} {{ 5 | round }} {{ 1.1 | round(method='ceil') }} {{ -3 | abs }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent('> ', blank=true) }}|{{ 'a b c d e f' | truncate(6, leeway=0) }}|{{ 'a b c d' | truncate(4, true, '', 0) }}
{{ 1 is odd }} {{ 2 is even }} {{ 6 is divisibleby 3 }} {{ 'a' is string }} {{ d is mapping }} {{ xs is sequence }} {{ nope is sequence }} {{ d.items() is sequence }} {{ 1 is number }} {{ true is integer }} {{ 1.0 is float }} {{ none is none }} {{ 'a' is in 'abc' }} {{ 1 is sameas true }} {{ 'upper' is filter }}
{{ ('<a>' | safe) + '<b>' }} {{ '<a>' | e }} {{ '<a>' | safe }} {{ ('a' | safe) ~ '<' }} {{ ['<' | e] }}
{% generation %}{% set inner = 1 %}a{{ s }}{% endgeneration %}{{ inner is defined }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %a %B %j %-d %%') }}
{{ range(3) }} {{ range(1, 9, 2) | list }} {{ range(5, 0, -2) | list }} {{ dict(a=1, b=2) }} {{ dict([('x', 1)], y=2) }} {{ d.get('b') }} {{ d.get('q', 'z') }} {{ d | items | list }} {{ d.values() }}
{{ messages[0] }} {{ messages[-1]['role'] }} {{ messages | length }} {{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}
{{ {'a': '\u007f\x1f/é'} | tojson(ensure_ascii=true) }} {% macro p(a, b) %}{{ a }}{{ b }}{% endmacro %}{% set b = 1 %}{{ p(b, b=2) }}
{{ d is filter }}
{{ namespace(nope) }}
{{ d.items.x is undefined }} {{ d.items.x.y is undefined }}
{{ nope.x }}
{{ 'a' + 1 }}
{{ raise_exception('no') }}
{{ xs | nofilter }}
{% if false %}{{ xs | nofilter }}{% endif %}x
{% for i in 5 %}{% endfor %}
{% include 'x' %}
{{ xs.append(1) }}
{{ d.update({}) }}
{{ [].__class__ }}
{% break %}
{% for loop in xs %}{% endfor %}
{% set ns = namespace(_a=1) %}
{{ 'unclosed }}
{% if x %}
{% endfor %}
{{ (1, 2 }}
{{ 1 2 }}
{% set 1 = 2 %}
{{ xs[ }}
{{ none[1] is defined }}{{ 5['x'] is defined }}{{ [1]['x'] is defined }}{{ {}[[]] is defined }}
{{ 5[1:] }}{{ nope[1:] }}
{{ undefined_name | upper }}|{{ nope | join }}|{{ nope | list }}|{{ nope | length }}|{{ nope | trim }}|{{ nope == other }}|{{ nope == '' }}|{{ nope in [1] }}|{% for x in nope %}x{% endfor %}
{{ nope | int }}
{{ nope | tojson }}
{{ '\u00e9\x41\101\n\q' }}|{{ "\é" }}|{{ 'a\
b' }}
{{ 0x1F + 0b11 + 0o17 + 1_000 }} {{ 1.5e2 }} {{ .5 }}
{{ 0x1F + 0b11 + 0o17 + 1_000 }} {{ 1.5e2 }} {{ 12.0 }} {{ 1.0e+3 }}
{{ xs.0 }} {{ messages.0.role }} {{ d.items.x }}
{%- for m in messages recursive %}{{ loop(m) }}{% endfor %}
{{ {'a': 1}.a }} {{ {'a': {'b': [1, 2]}}.a.b.1 }} {{ 'abc'.upper().lower()[0] }} {{ (xs | sort)[0] }} {{ xs|length + 1 }} {{ -xs|length }}
{{ "a" if 1 else "b" if 2 else "c" }} {{ ("x" if 0) is undefined }} {{ 1 and 0 or 2 }} {{ '' or [] }} {{ [] and 1 }} {{ not '' }}
{% set it = xs | map('string') %}{{ it | list }}{{ it | list }}{{ xs | map('int') is sequence }}{{ (xs | map('int')) | length }}
{% for a in xs | map('string') %}{{ a }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }} {% endfor %}{{ d.items() | length }} {{ d.items() | first }}
{% for x in xs %}{% set x = x * 2 %}{{ x }}{{ loop.previtem }}{{ loop.nextitem is defined }}{{ loop.depth }} {% endfor %}
{% for x in xs %}{% for y in xs %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{%- set x = namespace() -%}{% set x.y = x %}{{ x }}
{{ 'Σίσυφος'.upper() }} {{ 'ΑΣ ΣΑ'.lower() }} {{ 'İ'.lower() }}
{{ "%c" % 'a' }}
{{ 99999999999999999999 + 1 }}
""".strip("\n").replace("'a\\\nb'", "'a\\\x01b'").split("\n")


def outcome(template, conversation, tokens):
    """What to compare with, or None where Python's own text is an address."""
    want = chat_oracle.expected(template, conversation, tokens)
    return None if " at 0x" in want else want


def row(head, template, conversation, tokens):
    try:
        want = outcome(template, conversation, tokens)
    except Exception:  # whatever Python raises
        return {**head, "conversation": conversation, "error": True}
    return None if want is None else {**head, "conversation": conversation, "text": want}


def dump(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for r in rows:
            text = json.dumps(r, ensure_ascii=False, separators=(",", ":"))
            f.write(text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") + "\n")
    print(path.name, len(rows), "cases,", sum("error" in r for r in rows), "errors")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--fuzz", type=int, default=3000)
    a = p.parse_args()
    warnings.simplefilter("ignore")
    rows, all_talks = [], conversations()
    for path in sorted(OUT.glob("*.jinja")):
        program = path.read_text(encoding="utf-8")
        for i, (conversation, special) in enumerate(all_talks):
            if special and not re.search("tool|documents|date_string|enable_thinking", program):
                continue
            r = row({"template": path.stem}, program, conversation, TOKENS)
            rows.append({**r, "conversation": i})
    dump(OUT / "conversations.jsonl", [c for c, _ in all_talks])
    dump(OUT / "cases.jsonl", rows)
    rows = []
    talk = fuzz_chat.conversation(random.Random(3))
    for program in CONSTRUCTS:
        program = program.replace("\x01", "\n")
        rows.append(row({"program": program}, program, talk, {}))
    for seed in range(a.fuzz):
        program, talk = fuzz_chat.case(seed)
        r = row({"program": program}, program, talk, {})
        if r and "text" in r and len(r["text"]) < 600:
            rows.append(r)
    dump(OUT / "constructs.jsonl", [{**r, "conversation": json.dumps(r["conversation"], ensure_ascii=False)} for r in rows if r])


if __name__ == "__main__":
    main()
