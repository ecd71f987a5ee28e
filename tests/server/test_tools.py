"""Tools and thoughts through the three chat APIs. The tiny model knows neither: grammars make it call, and forms of
thoughts whose answers begin inside make it think."""
import os
import pathlib
import re
import tempfile

from common import DEEP, SANITIZED, TINY, Server, is_refused, json, main

s = Server("--served-model-name", "tiny")
USER = [{"role": "user", "content": "Tell me a story"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]},
                                            "days": {"type": "integer", "minimum": 1, "maximum": 7}},
           "required": ["city", "days"], "additionalProperties": False}
NOTE = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
        "required": ["text"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "take_note", "parameters": NOTE, "strict": True}}]
CHAT = {"messages": USER, "tools": TOOLS, "max_tokens": 400, "temperature": 1}
HARMLESS = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "a": {"type": "array", "minItems": 60000, "items": WEATHER}}}}}
SLOW = 20 if SANITIZED else 1
FORMS = ["hermes", "llama3_json", "mistral", "pythonic", "qwen3_xml"]


def check_call(name, arguments):
    a = json.loads(arguments) if isinstance(arguments, str) else arguments
    if name == "get_weather":
        assert a["city"] in ("Oslo", "Rome") and 1 <= a["days"] <= 7 and len(a) == 2, a
    else:
        assert name == "take_note" and len(a["text"]) <= 12 and set(a) <= {"text", "sure"}, (name, a)


def gathered(chunks):
    """One choice's message from the deltas of a stream."""
    m = {"content": "", "reasoning": "", "tool_calls": []}
    finish = None
    for c in chunks:
        if c == "[DONE]":
            break
        choice = c["choices"][0]
        d = choice["delta"]
        m["content"] += d.get("content") or ""
        m["reasoning"] += d.get("reasoning") or ""
        assert d.get("reasoning") == d.get("reasoning_content")
        for call in d.get("tool_calls", []):
            if call["index"] == len(m["tool_calls"]):
                assert call["type"] == "function" and call["id"]
                m["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            assert call["index"] == len(m["tool_calls"]) - 1
            m["tool_calls"][-1]["arguments"] += call["function"].get("arguments", "")
        finish = choice["finish_reason"] or finish
    return m, finish


def whole(answer):
    choice = answer["choices"][0]
    m = choice["message"]
    return {"content": m["content"] or "", "reasoning": m.get("reasoning", ""),
            "tool_calls": [c["function"] for c in m.get("tool_calls", [])]}, choice["finish_reason"]


def both(server, **more):
    """The message of an answer in one piece; that of the stream is the same."""
    body = {**CHAT, **more}
    made = whole(server.good("/v1/chat/completions", body))
    streamed = gathered(server.stream("/v1/chat/completions", body))
    assert made == streamed, (made, streamed)
    return made


def test_required():
    names = set()
    for seed in range(40):
        if len(names) == 2:
            break
        m, finish = both(s, tool_choice="required", seed=seed, parallel_tool_calls=False, temperature=2)
        assert finish == "tool_calls" and m["content"] == "" and len(m["tool_calls"]) == 1, m
        check_call(**m["tool_calls"][0])
        names.add(m["tool_calls"][0]["name"])
    assert names == {"get_weather", "take_note"}
    m, finish = both(s, tool_choice={"type": "function", "function": {"name": "take_note"}}, seed=1,
                     parallel_tool_calls=False)
    assert m["tool_calls"][0]["name"] == "take_note" and finish == "tool_calls"
    answer = s.good("/v1/chat/completions", {**CHAT, "tool_choice": "required", "n": 3, "seed": 3, "parallel_tool_calls": False})
    ids = [c["message"]["tool_calls"][0]["id"] for c in answer["choices"]]
    assert len(set(ids)) == 3 and all(i.startswith("call_") for i in ids)
    m, finish = both(s, tool_choice="required", seed=2, max_tokens=12)
    assert finish == "length"


def test_auto_and_none():
    """The tiny model never calls: tools change its prompt, and nothing else."""
    for choice in ("auto", "none"):
        m, finish = both(s, tool_choice=choice, max_tokens=12, temperature=0)
        assert m["content"] and not m["tool_calls"] and finish == "length"
    count = s.good("/tokenize", {"messages": USER, "tools": TOOLS})["count"]
    assert count > s.good("/tokenize", {"messages": USER})["count"]
    answer = s.good("/v1/chat/completions", {**CHAT, "max_tokens": 1})
    assert answer["usage"]["prompt_tokens"] == count


def test_forms():
    """Each form of calls, as a grammar and taken apart again; some of the answers have several calls."""
    most = 0
    for form in FORMS:
        with Server("--tool-call-parser", form, "--enable-auto-tool-choice") as one:
            for seed in range(1 if SANITIZED else 3 if DEEP else 2):
                m, finish = both(one, tool_choice="required", seed=seed, temperature=2, max_tokens=250)
                if finish == "tool_calls":
                    assert m["tool_calls"] and m["content"] == "", (form, m)
                    most = max(most, len(m["tool_calls"]))
                    for call in m["tool_calls"]:
                        check_call(**call)
            m, finish = both(one, tool_choice="required", seed=1, parallel_tool_calls=False)
            assert finish == "tool_calls" and m["content"] == "" and len(m["tool_calls"]) == 1, (form, m)
            check_call(**m["tool_calls"][0])
            if form == "mistral":
                answer = one.good("/v1/chat/completions", {**CHAT, "tool_choice": "required", "seed": 1})
                assert len(answer["choices"][0]["message"]["tool_calls"][0]["id"]) == 9
    assert most > 1 or SANITIZED


# What a model may say, form by form, and the calls in it; the rest is text, white space beside calls left out.
SAID = [
    ("hermes", 'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n<tool_call>\n'
     '{"name": "take_note", "arguments": {"text": "<tool_call>"}}\n</tool_call>', "I look.",
     [("get_weather", '{"city": "Oslo"}'), ("take_note", '{"text": "<tool_call>"}')]),
    ("hermes", 'A call is <tool_call>{"name": "frobnicate"}</tool_call>.', 'A call is <tool_call>{"name": "frobnicate"}</tool_call>.', []),
    ("hermes", "1 < 2 <tool_cal", "1 < 2 <tool_cal", []),
    ("llama3_json", '{"name": "get_weather", "parameters": {}}; {"name": "take_note", "parameters": {"text": "a"}}', "",
     [("get_weather", "{}"), ("take_note", '{"text": "a"}')]),
    ("llama3_json", '{"name": "Ada", "parameters": 1}', '{"name": "Ada", "parameters": 1}', []),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}', "", [("get_weather", '{"city": "Rome"}')]),
    ("mistral", '[TOOL_CALLS] [{"name": "take_note", "arguments": {"text": "]"}}]', "", [("take_note", '{"text": "]"}')]),
    ("pythonic", "[get_weather(city='Oslo', days=3), take_note(text=\"\\n\", sure=True)]", "",
     [("get_weather", '{"city": "Oslo", "days": 3}'), ("take_note", '{"text": "\\n", "sure": true}')]),
    ("pythonic", "[get_weather is a tool]", "[get_weather is a tool]", []),
    ("qwen3_xml", "So:\n<tool_call>\n<function=take_note>\n<parameter=text>\na \"b\"\nc\n</parameter>\n<parameter=sure>\ntrue\n"
     "</parameter>\n</function>\n</tool_call>", "So:", [("take_note", '{"text": "a \\"b\\"\\nc", "sure": true}')]),
    ("qwen3_xml", "<function=absent></function>", "<function=absent></function>", []),
]


def test_said():
    """A choice of one text makes the model say it: taken apart alike in one piece and in a stream; with
    tool_choice none it is text."""
    for form in FORMS:
        with Server("--tool-call-parser", form, "--served-model-name", "tiny") as one:
            for text, content, calls in [row[1:] for row in SAID if row[0] == form][:1 if SANITIZED else None]:
                more = {"structured_outputs": {"choice": [text]}}
                m, finish = both(one, **more)
                assert m["content"] == content and [(c["name"], c["arguments"]) for c in m["tool_calls"]] == calls, (text, m)
                assert finish == ("tool_calls" if calls else "stop")
                m, finish = both(one, **more, tool_choice="none")
                assert m["content"] == text and not m["tool_calls"] and finish == "stop", (text, m)
                if len(calls) > 1 or DEEP:
                    m, _ = both(one, **more, parallel_tool_calls=False)
                    assert [(c["name"], c["arguments"]) for c in m["tool_calls"]] == calls[:1], (text, m)
                m, _ = both(one, **more, logprobs=True, top_logprobs=1)
                assert m["content"] == content


def prompt_of(messages, **more):
    return "".join(s.good("/tokenize", {"messages": messages, "return_token_strs": True, **more})["token_strs"])


def test_conversation():
    """Calls and results in the conversation, through the model's template."""
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    said = prompt_of([*USER, {"role": "assistant", "content": None, "tool_calls": [call]},
                      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Rain"}]}])
    assert said == ('<|im_start|>user\nTell me a story<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", '
                    '"arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>\n<|im_start|>tool\nRain<|im_end|>\n'
                    '<|im_start|>assistant\n'), said
    ask = {"model": "tiny", "max_tokens": 1}
    chat = s.good("/v1/chat/completions", {**ask, "tools": TOOLS, "messages": [
        {"role": "system", "content": "Be brief."}, *USER,
        {"role": "assistant", "content": "I look.", "tool_calls": [call, {**call, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain"}, {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "user", "content": "So?"}]})
    claude = s.good("/v1/messages/count_tokens", {"model": "tiny", "system": "Be brief.", "tools": [
        {"name": "get_weather", "description": "Weather", "input_schema": WEATHER}, {"name": "take_note", "input_schema": NOTE},
        {"type": "web_search_20250305", "name": "web_search"}], "messages": [*USER, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm", "signature": ""}, {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "c2", "name": "get_weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "Rain"},
                                     {"type": "tool_result", "tool_use_id": "c2"}, {"type": "text", "text": "So?"}]}]})
    response = s.good("/v1/responses", {"model": "tiny", "max_output_tokens": 1, "instructions": "Be brief.", "tools": [
        {"type": "function", "name": "get_weather", "description": "Weather", "parameters": WEATHER},
        {"type": "function", "name": "take_note", "parameters": NOTE}, {"type": "web_search"}], "input": [
            *USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
            {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
            {"type": "function_call_output", "call_id": "c2", "output": []}, {"role": "user", "content": "So?"}]})
    assert chat["usage"]["prompt_tokens"] == claude["input_tokens"] == response["usage"]["input_tokens"]


def test_refused():
    def refused(param, **more):
        is_refused(s.post("/v1/chat/completions", {**CHAT, **more}), 400, param)
    function = TOOLS[0]["function"]
    refused("tools", tools={})
    refused("tools[0].type", tools=[{"type": "custom", "custom": {}}])
    refused("tools[0].function", tools=[{"type": "function"}])
    refused("tools[0].function.name", tools=[{"type": "function", "function": {}}])
    refused("tools[0].function.name", tools=[{"type": "function", "function": {"name": "a b"}}])
    refused("tools[1].function.name", tools=[TOOLS[0], TOOLS[0]])
    refused("tools[0].function.parameters", tools=[{"function": {"name": "f", "parameters": []}}])
    refused("tool_choice", tools=None, tool_choice="required")
    refused("tool_choice", tool_choice="sometimes")
    refused("tool_choice.name", tool_choice={"type": "function", "function": {"name": "absent"}})
    refused("tool_choice", tool_choice="required", response_format={"type": "json_object"})
    odd = {**function, "parameters": {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}}}
    refused("tools[1].function.parameters", tool_choice="required", tools=[TOOLS[1], {"type": "function", "function": odd}])
    refused("messages[0].content", messages=[{"role": "assistant"}])
    refused("messages[0].tool_calls", messages=[{"role": "assistant", "tool_calls": 1, "content": ""}])
    refused("messages[0].tool_calls[0].function.name", messages=[{"role": "assistant", "tool_calls": [{"function": {}}]}])
    refused("reasoning_effort", reasoning_effort="lots")
    status, _, body = s.post("/v1/messages", {"model": "tiny", "max_tokens": 1, "messages": USER, "thinking": {"type": "x"}})
    assert status == 400 and "thinking.type" in body["error"]["message"]
    with Server("--chat-template", "chatml", "--tool-call-parser", "none") as plain:
        is_refused(plain.post("/v1/chat/completions", CHAT), 400, "tools", "unsupported_parameter")


def cpu_seconds():
    """Of the server, by the clock's ticks of 10 ms."""
    fields = pathlib.Path(f"/proc/{s.process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_bombs():
    """What is too large or too deep is refused at once, with the field's name."""
    deep = {}
    for _ in range(20):
        deep = {"type": "object", "properties": {"a": deep}}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string", "description": "x" * 60} for i in range(900)}}
    twins = {"type": "object", "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(14)},
             "properties": {"a": {"$ref": "#/$defs/d0"}}}
    twins["$defs"]["d14"] = {"type": "null"}

    def tool(parameters, name="f"):
        return {"type": "function", "function": {"name": name, "parameters": parameters}}
    for tools in ([tool(deep)], [tool(wide)] * 1, [tool({}, f"f{i}") for i in range(257)], [tool(wide, f"f{i}") for i in range(13)],
                  [tool({"type": "string", "pattern": "(" * 99 + ")" * 99})], [tool(twins)],
                  [HARMLESS]):
        before, began = s.rss(), cpu_seconds()
        status, _, body = s.post("/v1/chat/completions", {**CHAT, "tools": tools, "tool_choice": "required", "max_tokens": 1})
        seconds = cpu_seconds() - began
        assert (status == 200 and len(tools) == 1 and tools[0] in (HARMLESS, tool(twins))) or (
            status == 400 and body["error"]["param"].startswith(("tools", "prompt"))), (status, body)
        assert status == 200 or seconds < .1 * SLOW and (SANITIZED or s.rss() - before < 16 << 10), (seconds, s.rss() - before, body)


def test_messages():
    ask = {"model": "tiny", "max_tokens": 300, "messages": USER, "temperature": 0,
           "tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]}
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        choice["disable_parallel_tool_use"] = True
        a = s.good("/v1/messages", {**ask, "tool_choice": choice})
        assert a["stop_reason"] == "tool_use" and [b["type"] for b in a["content"]] == ["tool_use"]
        check_call(a["content"][0]["name"], a["content"][0]["input"])
        events = s.stream("/v1/messages", {**ask, "tool_choice": choice})
        assert events[1][1]["content_block"] == {"type": "tool_use", "id": events[1][1]["content_block"]["id"],
                                                 "name": a["content"][0]["name"], "input": {}}
        made = "".join(e["delta"]["partial_json"] for n, e in events if n == "content_block_delta")
        assert json.loads(made) == a["content"][0]["input"]
        assert events[-2][1]["delta"]["stop_reason"] == "tool_use"
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    a = s.good("/v1/messages", {"model": "tiny", "max_tokens": 60, "messages": USER, "temperature": 0, "output_config": {
        "effort": "max", "format": {"type": "json_schema", "schema": schema}}})
    assert json.loads(a["content"][0]["text"])["a"] in (True, False)
    cut = s.good("/v1/messages", {**ask, "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 45})
    assert cut["stop_reason"] == "max_tokens" and list(cut["content"][0]["input"]) == ["INVALID_JSON"]


def test_responses():
    ask = {"model": "tiny", "max_output_tokens": 300, "input": "Tell me a story", "temperature": 0, "parallel_tool_calls": False,
           "tools": [{"type": "function", "strict": None, **t["function"]} for t in TOOLS]}
    for choice in ("required", {"type": "function", "name": "take_note"}):
        a = s.good("/v1/responses", {**ask, "tool_choice": choice})
        [item] = a["output"]
        assert item["type"] == "function_call" and item["status"] == "completed" and a["tool_choice"] == choice
        assert [t["name"] for t in a["tools"]] == ["get_weather", "take_note"] and a["parallel_tool_calls"] is False
        check_call(item["name"], item["arguments"])
        events = s.stream("/v1/responses", {**ask, "tool_choice": choice})
        assert [e["sequence_number"] for _, e in events] == list(range(len(events)))
        assert [n for n, _ in events if not n.endswith(".delta")] == [
            "response.created", "response.in_progress", "response.output_item.added", "response.function_call_arguments.done",
            "response.output_item.done", "response.completed"]
        assert "".join(e["delta"] for n, e in events if n.endswith(".delta")) == item["arguments"]
        assert events[-1][1]["response"]["output"][0]["arguments"] == item["arguments"]
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    a = s.good("/v1/responses", {"model": "tiny", "input": "Hi", "temperature": 0,
                                 "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}, "verbosity": "low"}})
    assert json.loads(a["output"][0]["content"][0]["text"])["a"] in (True, False)
    is_refused(s.post("/v1/responses", {**ask, "text": {"format": {"type": "x"}}}), 400, "text.format.type")
    is_refused(s.post("/v1/responses", {**ask, "reasoning": {"effort": "x"}}), 400, "reasoning.effort")


def test_thoughts():
    with Server("--reasoning-parser", "deepseek_r1", "--served-model-name", "tiny") as r1:
        ask = {"messages": USER, "temperature": 0, "max_tokens": 40, "seed": 1}
        plain = s.good("/v1/chat/completions", {**ask, "tools": None})["choices"][0]["message"]["content"]
        m, finish = both(r1, **ask, tools=None)
        assert m["content"] == "" and plain.startswith(m["reasoning"]) and len(m["reasoning"]) > 20 and finish == "length"
        for budget in (0, 7):
            answer = r1.good("/v1/chat/completions", {**ask, "thinking_token_budget": budget, "max_tokens": 60})
            made, finish = both(r1, **ask, tools=None, thinking_token_budget=budget)
            usage = answer["usage"]
            assert made["content"] and usage["completion_tokens_details"]["reasoning_tokens"] == max(budget, 1), (made, usage)
            assert plain.startswith(made["reasoning"]) and usage["completion_tokens"] <= 60
        hidden = whole(r1.good("/v1/chat/completions", {**ask, "thinking_token_budget": 7, "include_reasoning": False}))[0]
        assert hidden["reasoning"] == "" and hidden["content"] == made["content"]
        joined = whole(r1.good("/v1/chat/completions", {**ask, "separate_reasoning": False}))[0]
        assert joined["content"] == plain and joined["reasoning"] == ""

        a = r1.good("/v1/messages", {"model": "tiny", "max_tokens": 40, "messages": USER, "temperature": 0,
                                     "thinking": {"type": "enabled", "budget_tokens": 7}})
        assert [b["type"] for b in a["content"]] == ["thinking", "text"] and a["content"][0]["thinking"] == made["reasoning"]
        events = r1.stream("/v1/messages", {"model": "tiny", "max_tokens": 40, "messages": USER, "temperature": 0,
                                            "thinking": {"type": "enabled", "budget_tokens": 7}})
        assert "".join(e["delta"]["thinking"] for _, e in events if e.get("delta", {}).get("type") == "thinking_delta"
                       ) == made["reasoning"]
        assert [e["index"] for n, e in events if n == "content_block_start"] == [0, 1]
        a = r1.good("/v1/responses", {"model": "tiny", "max_output_tokens": 20, "input": "Tell me a story", "temperature": 0,
                                      "reasoning": {"effort": "low", "summary": "auto"}})
        assert a["output"][0]["type"] == "reasoning" and a["output"][0]["content"][0]["type"] == "reasoning_text"
        assert a["usage"]["output_tokens_details"]["reasoning_tokens"] == 20

        # A thought of so many tokens, then a call: the grammar holds from the end of the thought on.
        m, finish = both(r1, tool_choice="required", seed=5, thinking_token_budget=9, parallel_tool_calls=False)
        assert m["reasoning"] and m["content"] == "" and finish == "tool_calls", m
        check_call(**m["tool_calls"][0])
        ask = {"model": "tiny", "max_tokens": 300, "temperature": 0, "messages": USER, "thinking": {
            "type": "enabled", "budget_tokens": 9}, "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]}
        a = r1.good("/v1/messages", ask)
        assert [b["type"] for b in a["content"]] == ["thinking", "tool_use"] and a["stop_reason"] == "tool_use"
        events = r1.stream("/v1/messages", ask)
        deltas = [(e["index"], list(e["delta"].values())[1]) for n, e in events if n == "content_block_delta"]
        assert "".join(d for i, d in deltas if i == 0) == a["content"][0]["thinking"]
        assert json.loads("".join(d for i, d in deltas if i == 1)) == a["content"][1]["input"]
        ask = {"model": "tiny", "max_output_tokens": 300, "temperature": 0, "input": "Tell me a story", "tool_choice": "required",
               "thinking_token_budget": 9, "parallel_tool_calls": False,
               "tools": [{"type": "function", **t["function"]} for t in TOOLS]}
        a = r1.good("/v1/responses", ask)
        assert [o["type"] for o in a["output"]] == ["reasoning", "function_call"]
        events = r1.stream("/v1/responses", ask)
        assert "".join(e["delta"] for n, e in events if n == "response.function_call_arguments.delta") == a["output"][1]["arguments"]
        assert "".join(e["delta"] for n, e in events if n == "response.reasoning_text.delta") == a["output"][0]["content"][0]["text"]
        assert [e["output_index"] for n, e in events if n == "response.output_item.done"] == [0, 1]
        m, _ = both(r1, tools=None, seed=5, thinking_token_budget=9, structured_outputs={"choice": ["yes", "no"]})
        assert m["reasoning"] and m["content"] in ("yes", "no")
        r1.until(lambda: r1.request("GET", "/load")[2]["server_load"] == 0)
        r1.end()
    with Server("--reasoning-parser", "qwen3") as r3:  # may think, and does not: its form holds from the beginning
        m, _ = both(r3, tools=None, seed=5, structured_outputs={"choice": ["yes", "no"]})
        assert m["reasoning"] == "" and m["content"] in ("yes", "no")
        m, finish = both(r3, tool_choice="required", seed=5, parallel_tool_calls=False)
        assert finish == "tool_calls"


def test_documented():
    """The bodies of docs/tools.md, as a reader would send them."""
    text = pathlib.Path("docs/tools.md").read_text(encoding="utf-8")
    bodies = re.findall(r"^curl localhost:8000(\S+) -H 'Content-Type: application/json' -d '(.*?)'$", text, re.DOTALL | re.MULTILINE)
    answers = [s.good(path, body) for path, body in bodies]
    assert len(answers) == 2
    call = answers[0]["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "get_weather" and json.loads(call["arguments"])["city"] in ("Oslo", "Rome")
    assert answers[0]["choices"][0]["finish_reason"] == "tool_calls" and answers[1]["choices"][0]["message"]["content"]


def test_special_marks():
    """Marks that are special tokens: a grammar names them, and they are read although a text leaves them out."""
    with tempfile.TemporaryDirectory() as folder:
        for file in pathlib.Path(TINY).resolve().iterdir():
            if file.name.startswith("tokenizer"):
                text = file.read_text(encoding="utf-8").replace("<|im_start|>", "[TOOL_CALLS]")
                pathlib.Path(folder, file.name).write_text(text, encoding="utf-8")
            else:
                pathlib.Path(folder, file.name).symlink_to(file)
        with Server("--tool-call-parser", "mistral", model=folder) as one:
            made = one.good("/v1/completions", {"prompt": "Hi", "skip_special_tokens": False, "structured_outputs": {
                "grammar": 'root ::= %token "[TOOL_CALLS]" " yes"'}})
            assert made["choices"][0]["text"] == "[TOOL_CALLS] yes", made
            made = one.good("/v1/completions", {"prompt": "Hi", "structured_outputs": {"grammar": 'root ::= "[TOOL_CALLS]"'}})
            assert made["choices"][0]["text"] == "[TOOL_CALLS]" and made["usage"]["completion_tokens"] > 2, made
            m, finish = both(one, tool_choice="required", seed=1, parallel_tool_calls=False, logprobs=True)
            assert finish == "tool_calls" and m["content"] == "", m
            check_call(**m["tool_calls"][0])
            answer = one.good("/v1/chat/completions", {**CHAT, "tool_choice": "required", "seed": 1, "logprobs": True})
            assert answer["choices"][0]["logprobs"]["content"][0]["token"] == "[TOOL_CALLS]"


def test_unknown_parser():
    try:
        Server("--tool-call-parser", "nonsense")
    except AssertionError as e:
        assert "want none, hermes" in str(e), e
    else:
        raise AssertionError("a server with a parser that is not known")


def test_sound():
    s.check_sound()
    s.end()


main(globals())
