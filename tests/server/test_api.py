"""The routes, field by field, over one server."""
import http.client
import pathlib
import re
import tempfile

from common import JSON, KNOWN, Server, is_refused, json, known, main

s = Server("--served-model-name", "tiny", "--served-model-name", "other")
CHAT = {"messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 12, "temperature": 0}


def chat_text(**more):
    return s.good("/v1/chat/completions", {**CHAT, **more})["choices"][0]["message"]["content"]


def test_information():
    assert s.request("GET", "/health")[0] == 200
    assert s.request("GET", "/ping")[0] == 200
    assert s.request("GET", "/version")[2]["version"]
    assert s.request("HEAD", "/health")[2] == ""
    models = s.request("GET", "/v1/models")[2]
    assert [m["id"] for m in models["data"]] == ["tiny", "other"] and models["object"] == "list"
    assert models["data"][0]["max_model_len"] == 1024
    assert s.request("GET", "/v1/models/other")[2]["id"] == "other"
    assert s.request("GET", "/v1/models/%6fther")[2]["id"] == "other"
    is_refused(s.request("GET", "/v1/models/absent"), 404, "model", "model_not_found")
    assert s.request("GET", "/load")[2] == {"server_load": 0, "num_requests_running": 0, "num_requests_waiting": 0}
    assert s.request("GET", "/server_info")[2]["max_model_len"] == 1024
    assert s.request("GET", "/tokenizer_info")[2]["eos_token"] == "<|im_end|>"
    assert "<html" in s.request("GET", "/")[2]


def test_paths():
    is_refused(s.request("GET", "/absent"), 404, None, "not_found")
    is_refused(s.request("GET", "/v1/models/"), 404)
    is_refused(s.request("GET", "/health/"), 404)
    status, headers, _ = s.request("GET", "/v1/completions")
    assert (status, headers["Allow"]) == (405, "POST")
    status, headers, _ = s.request("DELETE", "/health")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    is_refused(s.request("OPTIONS", "/health"), 405)
    is_refused(s.post("/v1/completions", "prompt=x", headers={"Content-Type": "text/plain"}), 415)
    is_refused(s.post("/v1/completions", "{}", headers={}), 415)
    assert s.request("GET", "/health?x=1")[0] == 200


def test_completion():
    text, logprobs = known()
    a = s.good("/v1/completions", KNOWN)
    assert a["object"] == "text_completion" and a["model"] == "tiny" and a["id"].startswith("cmpl-")
    assert a["choices"][0]["text"] == text
    assert a["choices"][0]["logprobs"]["token_logprobs"] == logprobs
    assert a["choices"][0]["finish_reason"] == "length"
    assert a["usage"] == {"prompt_tokens": 3, "completion_tokens": 24, "total_tokens": 27,
                          "prompt_tokens_details": {"cached_tokens": a["usage"]["prompt_tokens_details"]["cached_tokens"]}}
    assert a["system_fingerprint"].startswith("fp_")
    assert len(s.good("/v1/completions", {"prompt": "Once"})["choices"][0]["text"]) > 0
    assert s.good("/v1/completions", {"prompt": "Once"})["usage"]["completion_tokens"] <= 16


def test_prompts():
    one = [s.good("/v1/completions", {"prompt": p, "max_tokens": 4, "temperature": 0})["choices"][0]["text"]
           for p in ("Once", "There")]
    both = s.good("/v1/completions", {"prompt": ["Once", "There"], "max_tokens": 4, "temperature": 0})
    assert [c["text"] for c in both["choices"]] == one
    assert [c["index"] for c in both["choices"]] == [0, 1]
    ids = [s.good("/tokenize", {"prompt": p})["tokens"] for p in ("Once", "There")]
    of_ids = s.good("/v1/completions", {"prompt": ids, "max_tokens": 4, "temperature": 0})
    assert [c["text"] for c in of_ids["choices"]] == one
    assert s.good("/v1/completions", {"prompt": ids[0], "max_tokens": 4, "temperature": 0})["choices"][0]["text"] == one[0]


def test_echo():
    a = s.good("/v1/completions", {"prompt": [[1, 2, 3]], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True,
                                   "seed": 1234})["choices"][0]
    l = a["logprobs"]
    assert l["tokens"][:3] == ["\"", "#", "$"] and len(l["tokens"]) == 4
    assert l["token_logprobs"][0] is None and all(x < 0 for x in l["token_logprobs"][1:])
    assert l["top_logprobs"][0] is None
    for token, logprob, top in zip(l["tokens"][1:], l["token_logprobs"][1:], l["top_logprobs"][1:], strict=True):
        assert top[token] == logprob and max(top.values()) >= logprob
    assert l["text_offset"] == [0, 1, 2, 3] and a["text"].startswith("\"#$")
    only = s.good("/v1/completions", {"prompt": "Once upon", "max_tokens": 0, "echo": True})
    assert only["choices"][0]["text"] == "Once upon" and only["usage"]["completion_tokens"] == 0
    is_refused(s.post("/v1/completions", {"prompt": "x", "max_tokens": 0}), 400, "max_tokens")


def test_n_and_seed():
    ask = {"prompt": "Once", "max_tokens": 8, "temperature": 1.0, "seed": 7, "n": 3}
    three = [c["text"] for c in s.good("/v1/completions", ask)["choices"]]
    assert three == [c["text"] for c in s.good("/v1/completions", ask)["choices"]]
    assert len(set(three)) > 1
    for i, text in enumerate(three):
        assert s.good("/v1/completions", {**ask, "n": 1, "seed": 7 + i})["choices"][0]["text"] == text
    is_refused(s.post("/v1/completions", {**ask, "n": 17}), 400, "n", "invalid_value")
    is_refused(s.post("/v1/completions", {**ask, "n": 0}), 400, "n")
    is_refused(s.post("/v1/completions", {**ask, "n": 10 ** 30}), 400, "n")


def test_stops():
    text = chat_text(max_tokens=40)
    word = text.split()[3]
    a = s.good("/v1/chat/completions", {**CHAT, "stop": [word], "max_tokens": 40})["choices"][0]
    assert a["message"]["content"] == text[:text.index(word)]
    assert (a["finish_reason"], a["stop_reason"]) == ("stop", word)
    a = s.good("/v1/chat/completions", {**CHAT, "stop": word, "include_stop_str_in_output": True, "max_tokens": 40})
    assert a["choices"][0]["message"]["content"].endswith(word)
    ids = s.good("/v1/completions", {**KNOWN})
    tokens = s.good("/tokenize", {"prompt": ids["choices"][0]["text"]})["tokens"]
    a = s.good("/v1/completions", {**KNOWN, "ignore_eos": False, "stop_token_ids": [tokens[5]]})["choices"][0]
    assert a["stop_reason"] == tokens[5]
    a = s.good("/v1/completions", {**KNOWN, "ignore_eos": False, "stop_token_ids": [tokens[0]], "min_tokens": 9})
    assert a["usage"]["completion_tokens"] >= 9
    is_refused(s.post("/v1/completions", {**KNOWN, "stop": [""]}), 400, "stop")
    is_refused(s.post("/v1/completions", {**KNOWN, "stop": ["x"] * 17}), 400, "stop")
    is_refused(s.post("/v1/completions", {**KNOWN, "stop_token_ids": [1 << 20]}), 400, "stop_token_ids")


def test_logprobs():
    a = s.good("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3})["choices"][0]
    content = a["logprobs"]["content"]
    assert len(content) == 12 and "".join(t["token"] for t in content) == a["message"]["content"]
    for t in content:
        assert t["logprob"] <= t["top_logprobs"][0]["logprob"] and len(t["top_logprobs"]) == 3
        assert bytes(t["bytes"]).decode() == t["token"]
    is_refused(s.post("/v1/chat/completions", {**CHAT, "top_logprobs": 3}), 400, "top_logprobs")
    is_refused(s.post("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}), 400, "top_logprobs")
    is_refused(s.post("/v1/chat/completions", {**CHAT, "logprobs": 1}), 400, "logprobs", "invalid_type")


def test_logit_bias():
    a = s.good("/v1/completions", {"prompt": "Once", "max_tokens": 3, "temperature": 0, "logit_bias": {"5": 100}})
    assert a["choices"][0]["text"] == s.good("/detokenize", {"tokens": [5, 5, 5]})["prompt"]
    for bad in ({"-1": 1}, {"x": 1}, {"5": 101}, {"5": "1"}, {"99999": 1}, [1]):
        is_refused(s.post("/v1/completions", {"prompt": "Once", "logit_bias": bad}), 400, "logit_bias")


def test_chat_stream():
    whole = s.good("/v1/chat/completions", CHAT)
    chunks = s.stream("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    assert chunks.pop() == "[DONE]"
    usage = chunks.pop()
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert all(c["usage"] is None for c in chunks)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["delta"] == {} and chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == chat_text()
    assert len({c["id"] for c in chunks}) == 1
    counted = s.stream("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True,
                                                                          "continuous_usage_stats": True}})
    assert [c["usage"]["completion_tokens"] for c in counted[:-1]][-1] == 12
    is_refused(s.post("/v1/chat/completions", {**CHAT, "stream_options": {}}), 400, "stream_options")
    is_refused(s.post("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": 1}}), 400,
               "stream_options")
    _, headers, _ = s.post("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"x": 1}})
    assert headers["x-quern-ignored"] == "stream_options.x", headers


def test_streams_of_choices():
    ask = {"prompt": ["Once", "There"], "max_tokens": 6, "temperature": 1, "seed": 3, "n": 2, "logprobs": 1}
    whole = s.good("/v1/completions", ask)["choices"]
    chunks = s.stream("/v1/completions", ask)
    assert chunks.pop() == "[DONE]"
    for w in whole:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == w["index"]]
        assert "".join(c["text"] for c in mine) == w["text"]
        for key in w["logprobs"]:
            assert sum((c["logprobs"][key] for c in mine), []) == w["logprobs"][key], key
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [w["finish_reason"]]


def test_chat_content():
    parts = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": " a story"}]
    assert chat_text(messages=[{"role": "user", "content": parts}]) == chat_text()
    is_refused(s.post("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]}]}), 400,
        "messages[0].content[1].type", "unsupported_parameter")
    for bad, param in [([], "messages"), ("x", "messages"), ([1], "messages[0]"), ([{}], "messages[0].role"),
                       ([{"role": "pope", "content": "x"}], "messages[0].role"),
                       ([{"role": "user"}], "messages[0].content"),
                       ([{"role": "user", "content": 1}], "messages[0].content"),
                       ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text")]:
        is_refused(s.post("/v1/chat/completions", {**CHAT, "messages": bad}), 400, param)
    is_refused(s.post("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"messages": []}}), 400,
               "chat_template_kwargs")
    deep = {"a": {"b": {"c": {"d": {"e": 1}}}}}
    is_refused(s.post("/v1/chat/completions", {**CHAT, "chat_template_kwargs": deep}), 400, "chat_template_kwargs")
    assert chat_text(max_completion_tokens=12, max_tokens=3) == chat_text()


def test_limits():
    long = {"prompt": [1] * 1024, "max_tokens": 1}
    is_refused(s.post("/v1/completions", long), 400, "prompt", "context_length_exceeded")
    is_refused(s.post("/v1/completions", {"prompt": [1], "max_tokens": 1024}), 400, "max_tokens", "context_length_exceeded")
    is_refused(s.post("/v1/completions", {"prompt": [1 << 20]}), 400, "prompt")
    is_refused(s.post("/v1/completions", {"prompt": ""}), 400, "prompt")
    is_refused(s.post("/v1/completions", {"prompt": []}), 400, "prompt")
    is_refused(s.post("/v1/completions", {"prompt": ["x", 1]}), 400, "prompt")
    is_refused(s.post("/v1/completions", {"prompt": ["x"] * 1025}), 400, "prompt")
    is_refused(s.post("/v1/completions", {"prompt": ["x"] * 100, "n": 16}), 400, "n")
    is_refused(s.post("/v1/completions", {"prompt": "x", "model": "absent"}), 404, "model", "model_not_found")
    is_refused(s.post("/v1/completions", {}), 400, "prompt", "missing_required_parameter")
    assert s.good("/v1/completions", {"prompt": "x", "model": "other"})["model"] == "tiny"


def test_classes_of_fields():
    router = {**CHAT, "no_stop_trim": False, "separate_reasoning": True, "stream_reasoning": True, "tools": None,
              "return_hidden_states": False, "continue_final_message": False, "include_reasoning": True, "ebnf": None,
              "tool_choice": "auto", "response_format": {"type": "text"}, "user": "me", "metadata": {"a": "b"}, "store": False}
    assert chat_text(**router) == chat_text()
    for name, value in [("store", True), ("chat_template", "x"), ("best_of", 2), ("allowed_token_ids", [1]), ("audio", {})]:
        is_refused(s.post("/v1/chat/completions", {**CHAT, name: value}), 400, name, "unsupported_parameter")
    status, headers, _ = s.post("/v1/chat/completions", {**CHAT, "frobnicate": 1, "ünknown": 2})
    assert status == 200 and headers["x-quern-ignored"] == "frobnicate, ??nknown", headers["x-quern-ignored"]
    _, headers, _ = s.post("/v1/chat/completions", CHAT, headers={"Content-Type": "application/json", "X-Request-Id": "abc"})
    assert headers["x-request-id"] == "abc" and headers["x-quern-ignored"] is None


def test_structured():
    def made(**more):
        a = s.good("/v1/completions", {"prompt": "Once", "max_tokens": 60, "temperature": 0, **more})
        return a["choices"][0]["text"]
    assert made(structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    digits = made(structured_outputs={"regex": "[0-9]{3}"})
    assert len(digits) == 3 and digits.isdigit(), digits
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    for form in ({"structured_outputs": {"json": schema}},
                 {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}):
        assert json.loads(made(**form))["a"] in (True, False)
    for body, param in [({"structured_outputs": {"regex": "("}}, None), ({"structured_outputs": {"x": 1}}, "structured_outputs"),
                        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
                        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
                        ({"response_format": {"type": "xml"}}, "response_format.type"),
                        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema")]:
        is_refused(s.post("/v1/completions", {"prompt": "Once", **body}), 400, param)


def test_neutral_of_n():
    """best_of selects nothing where it is n; the verbosity is a hint; an empty model is none."""
    for more in ({"best_of": 1}, {"best_of": 2, "n": 2}, {"best_of": 2.0, "n": 2}, {"best_of": 1, "n": None},
                 {"verbosity": "low"}, {"model": ""}):
        status, headers, answer = s.post("/v1/chat/completions", {**CHAT, **more})
        assert status == 200 and headers["x-quern-ignored"] is None, (more, answer)
        assert len(answer["choices"]) == (more.get("n") or 1) and answer["model"] == "tiny"
    for more in ({"best_of": 2}, {"best_of": 1, "n": 2}, {"best_of": "1"}, {"best_of": 3, "n": 2}):
        is_refused(s.post("/v1/chat/completions", {**CHAT, **more}), 400, "best_of", "unsupported_parameter")
    is_refused(s.post("/v1/chat/completions", {**CHAT, "verbosity": 1}), 400, "verbosity", "invalid_type")


def test_non_finite():
    """NaN, Infinity and numbers beyond the reals are not the same as no value."""
    for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999"):
        for name in ("temperature", "top_p", "seed", "n", "max_tokens", "frequency_penalty", "logprobs", "best_of", "prompt",
                     "stop", "stream", "model", "user", "logit_bias", "priority"):
            body = '{"prompt": "Once", "max_tokens": 1, "%s": %s}' % (name, number)
            body = body.replace('"prompt": "Once", ' if name == "prompt" else '"max_tokens": 1, ', "")
            answer = s.post("/v1/completions", body)
            is_refused(answer, 400, name)
            if name in ("temperature", "top_p", "seed", "n", "max_tokens", "frequency_penalty", "logprobs", "priority"):
                assert "want a finite number" in answer[2]["error"]["message"], answer
        body = '{"prompt": "x", "stream": true, "stream_options": {"include_usage": %s}}' % number
        is_refused(s.post("/v1/completions", body), 400, "stream_options")


def said(messages, **more):
    return "".join(s.good("/tokenize", {"messages": messages, "return_token_strs": True, **more})["token_strs"])


USER = CHAT["messages"][0]
TURN = "<|im_start|>user\nTell me a story<|im_end|>\n<|im_start|>assistant\n"
NEXT = "<|im_end|>\n<|im_start|>user\nTell me a story<|im_end|>\n<|im_start|>assistant\n"


def test_turns_of_the_assistant():
    """The server's own answers are a history that it takes: thoughts only, and refusals."""
    for turn, text in [({"content": None, "refusal": None, "reasoning_content": "Hello! What"}, ""),
                       ({"content": None, "reasoning": "Hello! What"}, ""),
                       ({"content": None, "refusal": "I will not."}, "I will not."),
                       ({"refusal": "I will not."}, "I will not."),
                       ({"content": "Once", "refusal": None}, "Once"),
                       ({"content": [{"type": "text", "text": "No. "}, {"type": "refusal", "refusal": "I will not."}]},
                        "No. I will not.")]:
        assert said([USER, {"role": "assistant", **turn}, USER]) == TURN + text + NEXT, turn
    for turn in ({"content": None}, {"content": None, "reasoning_content": ""}, {"content": None, "refusal": None},
                 {"content": None, "refusal": ""}):
        is_refused(s.post("/v1/chat/completions", {**CHAT, "messages": [USER, {"role": "assistant", **turn}, USER]}), 400,
                   "messages[1].content", "missing_required_parameter")
    is_refused(s.post("/v1/chat/completions", {**CHAT, "messages": [USER, {"role": "assistant", "content": [
        {"type": "refusal", "refusal": 1}]}]}), 400, "messages[1].content[0].refusal")


def test_zero_bytes():
    """U+0000 ends no text early: it is part of the prompt, or refused with its field."""
    text = "Once\0 upon a time"
    ids = s.good("/tokenize", {"prompt": text})["tokens"]
    assert s.good("/detokenize", {"tokens": ids})["prompt"] == text
    a = s.good("/v1/completions", {"prompt": text, "max_tokens": 1, "temperature": 0, "echo": True})
    assert a["choices"][0]["text"].startswith(text) and a["usage"]["prompt_tokens"] == len(ids), a
    assert said([{"role": "user", "content": text}]).count(text) == 1
    chat = s.good("/v1/chat/completions", {**CHAT, "messages": [{"role": "system", "content": text},
                                                                {"role": "user", "content": text}]})
    n = chat["usage"]["prompt_tokens"]
    blocks = [{"type": "text", "text": text[:7]}, {"type": "text", "text": text[7:]}]
    assert s.good("/v1/messages/count_tokens", {"system": text, "messages": [{"role": "user", "content": blocks}]}) == {
        "input_tokens": n}
    response = s.good("/v1/responses", {"instructions": text, "input": text, "max_output_tokens": 1})
    assert response["usage"]["input_tokens"] == n
    for path, body, param in [("/v1/completions", {"prompt": "x", "model": "tiny\0zzz"}, "model"),
                              ("/v1/completions", {"prompt": "x", "cache_salt": "\0x"}, "cache_salt"),
                              ("/v1/completions", {"prompt": "x", "stop": "a\0"}, "stop"),
                              ("/v1/completions", {"prompt": "x", "structured_outputs": {"regex": "a\0b"}},
                               "structured_outputs.regex"),
                              ("/v1/chat/completions", {**CHAT, "reasoning_effort": "none\0"}, "reasoning_effort"),
                              ("/v1/responses", {"input": "x", "user": "\0"}, "user")]:
        is_refused(s.post(path, body), 400, param, "invalid_value")


def test_continued():
    """A last message of the assistant's goes on where it ends."""
    whole = chat_text(max_tokens=20)
    first = " ".join(whole.split()[:4])
    open_turn = [USER, {"role": "assistant", "content": first}]
    ends = {"continue_final_message": True, "add_generation_prompt": False}
    assert said(open_turn, **ends) == said(open_turn, continue_final_message=True) == TURN + first
    assert said([USER, {"role": "assistant", "content": first + " "}], **ends) == TURN + first + " "
    ids = s.good("/tokenize", {"prompt": TURN + first, "add_special_tokens": False})["tokens"]
    more = s.good("/v1/completions", {"prompt": ids, "max_tokens": 12, "temperature": 0})["choices"][0]["text"]
    assert more and chat_text(messages=open_turn, **ends) == more
    claude = {"model": "tiny", "max_tokens": 12, "temperature": 0}
    for content in (first, [{"type": "text", "text": first[:3]}, {"type": "text", "text": first[3:]}]):
        ask = {**claude, "messages": [USER, {"role": "assistant", "content": content}]}
        a = s.good("/v1/messages", ask)
        assert a["content"] == [{"type": "text", "text": more}] and a["usage"]["input_tokens"] == len(ids), a
        del ask["max_tokens"], ask["temperature"]
        assert s.good("/v1/messages/count_tokens", ask)["input_tokens"] == len(ids)
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    for content in ("", [], [{"type": "text", "text": "x"}, call], [{"type": "thinking", "thinking": "x", "signature": ""}]):
        status, _, body = s.post("/v1/messages", {**claude, "messages": [USER, {"role": "assistant", "content": content}]})
        assert status == 400 and body["error"]["type"] == "invalid_request_error", body
        assert "can be continued" in body["error"]["message"], body
    s.good("/v1/messages/count_tokens", {"messages": [USER, {"role": "assistant", "content": [call]}]})
    is_refused(s.post("/v1/chat/completions", {**CHAT, "continue_final_message": True}), 400, "messages")
    is_refused(s.post("/v1/chat/completions", {**CHAT, "messages": open_turn, "continue_final_message": True,
                                               "add_generation_prompt": True}), 400, "continue_final_message")
    assert said(open_turn, continue_final_message=False) == TURN + first + "<|im_end|>\n<|im_start|>assistant\n"


def test_continued_where_answers_begin_in_thoughts():
    with Server("--reasoning-parser", "deepseek_r1") as r1:
        ask = {**CHAT, "messages": [USER, {"role": "assistant", "content": "Once"}], "continue_final_message": True}
        m = r1.good("/v1/chat/completions", ask)["choices"][0]["message"]
        assert m["content"] and not m.get("reasoning_content"), m
        m = r1.good("/v1/chat/completions", CHAT)["choices"][0]["message"]
        assert m["reasoning_content"] and not m["content"], m


def test_continued_where_templates_trim():
    """A template that trims or leaves out the last text, as some models' have."""
    turns = "{%- for m in messages -%}{{- m.role + ': ' + (m.content TRIM) + '\n' -}}{%- endfor -%}"
    ask = {"messages": [USER, {"role": "assistant", "content": " Once "}], "continue_final_message": True,
           "return_token_strs": True}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "chat.jinja")
        for how, text in [("", "assistant:  Once "), ("| trim", "assistant: Once"), ("| length | string", None)]:
            file.write_text(turns.replace("TRIM", how))
            with Server("--chat-template", str(file)) as other:
                answer = other.post("/tokenize", ask)
                if text is None:
                    is_refused(answer, 400, "messages", "unsupported_parameter")
                else:
                    assert "".join(answer[2]["token_strs"]) == "user: Tell me a story\n" + text, (how, answer)


def test_strict():
    with Server("--strict") as strict:
        is_refused(strict.post("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"x": 1}}), 400,
                   "stream_options.x", "unknown_parameter")
        is_refused(strict.post("/v1/chat/completions", {**CHAT, "frobnicate": 1}), 400, "frobnicate", "unknown_parameter")


def test_tokenize():
    a = s.good("/tokenize", {"model": "tiny", "prompt": "Hi there", "add_special_tokens": False, "return_token_strs": True})
    assert a["count"] == len(a["tokens"]) == 2 and a["max_model_len"] == 1024 and a["token_strs"] == ["Hi", " there"]
    assert s.good("/detokenize", {"tokens": a["tokens"]})["prompt"] == "Hi there"
    m = s.good("/tokenize", {"messages": CHAT["messages"]})
    assert m["count"] == s.good("/v1/chat/completions", CHAT)["usage"]["prompt_tokens"]
    assert s.good("/tokenize", {"prompt": ""})["count"] == 0
    is_refused(s.post("/tokenize", {}), 400, "prompt")
    is_refused(s.post("/tokenize", {"prompt": "x", "messages": [{}]}), 400, "messages")
    is_refused(s.post("/detokenize", {"tokens": [-1]}), 400, "tokens")
    is_refused(s.post("/detokenize", {"tokens": "1"}), 400, "tokens")


def test_messages():
    ask = {"model": "tiny", "max_tokens": 12, "temperature": 0, "messages": CHAT["messages"]}
    a = s.good("/v1/messages", ask)
    assert a["type"] == "message" and a["content"] == [{"type": "text", "text": chat_text()}]
    assert a["stop_reason"] == "max_tokens" and a["usage"]["output_tokens"] == 12
    events = s.stream("/v1/messages", ask)
    assert [e[0] for e in events if e[0] != "content_block_delta"] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert "".join(e[1]["delta"]["text"] for e in events if e[0] == "content_block_delta") == chat_text()
    word = chat_text().split()[2]
    a = s.good("/v1/messages", {**ask, "stop_sequences": [word]})
    assert (a["stop_reason"], a["stop_sequence"]) == ("stop_sequence", word)
    with_system = {**ask, "system": [{"type": "text", "text": "Be brief."}]}
    assert s.good("/v1/messages", with_system)["usage"]["input_tokens"] == s.good(
        "/v1/messages/count_tokens", {k: with_system[k] for k in ("model", "system", "messages")})["input_tokens"]
    status, _, body = s.post("/v1/messages", {"messages": CHAT["messages"]})
    assert status == 400 and body == {"type": "error", "error": {"type": "invalid_request_error",
                                                                 "message": "max_tokens: is missing"}}
    status, _, body = s.post("/v1/messages", {**ask, "model": "absent"})
    assert status == 404 and body["error"]["type"] == "not_found_error"


def test_responses():
    ask = {"model": "tiny", "input": "Tell me a story", "max_output_tokens": 12, "temperature": 0}
    a = s.good("/v1/responses", ask)
    assert a["object"] == "response" and a["status"] == "incomplete" and a["store"] is False
    assert a["output"][0]["content"][0]["text"] == chat_text()
    assert a["usage"]["output_tokens"] == 12
    items = {**ask, "input": [{"type": "message", "role": "user", "content": [{"type": "input_text",
                                                                                "text": "Tell me a story"}]}]}
    assert s.good("/v1/responses", items)["output"][0]["content"] == a["output"][0]["content"]
    events = s.stream("/v1/responses", ask)
    assert [e["sequence_number"] for _, e in events] == list(range(len(events)))
    assert [n for n, _ in events if n != "response.output_text.delta"] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"]
    assert "".join(e["delta"] for n, e in events if n == "response.output_text.delta") == chat_text()
    assert events[-1][1]["response"]["output"][0]["content"][0]["text"] == chat_text()
    for name, value in [("previous_response_id", "resp_1"), ("store", True), ("background", True)]:
        is_refused(s.post("/v1/responses", {**ask, name: value}), 400, name, "unsupported_parameter")
    is_refused(s.post("/v1/responses", {**ask, "input": [{"type": "item_reference"}]}), 400, "input[0].type")
    codex = {**ask, "client_metadata": {}, "include": ["reasoning.encrypted_content"], "instructions": "Be brief.",
             "parallel_tool_calls": True, "prompt_cache_key": "k", "reasoning": None, "store": False, "tool_choice": "auto",
             "tools": []}
    assert s.good("/v1/responses", codex)["status"] in ("completed", "incomplete")


def test_metrics():
    before = s.metrics()
    s.good("/v1/completions", KNOWN)
    after = s.metrics()
    label = '{model_name="tiny",engine="0"}'
    for name, more in [("vllm:prompt_tokens_total", 3), ("vllm:generation_tokens_total", 24),
                       ("vllm:time_to_first_token_seconds_count", 1), ("vllm:inter_token_latency_seconds_count", 23),
                       ("vllm:e2e_request_latency_seconds_count", 1), ("vllm:request_prompt_tokens_sum", 3)]:
        assert after[name + label] - before[name + label] == more, name
    done = 'vllm:request_success_total{finished_reason="length",model_name="tiny",engine="0"}'
    assert after[done] - before[done] == 1
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert after[name + label] == 0
    assert any(k.startswith('vllm:cache_config_info{block_size="') for k in after)


def test_metrics_of_the_engine():
    """Blocks are held while a request runs, then cached; a prompt that comes again is found."""
    label = '{model_name="tiny",engine="0"}'
    whole = next(int(re.search(r'num_gpu_blocks="(\d+)"', k).group(1)) for k in s.metrics() if "num_gpu_blocks" in k)
    prompt = list(range(100, 300))
    c = http.client.HTTPConnection("127.0.0.1", s.port)
    c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 700, "ignore_eos": True, "stream": True}),
              JSON)
    assert c.getresponse().read(100)
    now = s.metrics()
    assert now["vllm:num_requests_running" + label] == 1
    held = now['quern_kv_blocks{state="held",' + label[1:]]
    assert held >= 4 and now["vllm:kv_cache_usage_perc" + label] == now["vllm:gpu_cache_usage_perc" + label]
    assert abs(now["vllm:kv_cache_usage_perc" + label] - held / whole) < 1e-9
    c.close()
    s.until(lambda: s.kv_blocks("held") == 0)
    assert s.kv_blocks("cached") >= 3
    assert sum(s.kv_blocks(state) for state in ("held", "cached", "free")) == whole
    before = s.metrics()
    s.good("/v1/completions", {"prompt": prompt, "max_tokens": 1})
    after = s.metrics()
    for prefix in ("vllm:", "vllm:gpu_"):
        for name, more in (("prefix_cache_queries_total", 200), ("prefix_cache_hits_total", 192)):
            assert after[prefix + name + label] - before[prefix + name + label] == more, name
    assert after["vllm:num_preemptions_total" + label] == 0


def test_sound():
    s.check_sound()
    s.end()


main(globals())
