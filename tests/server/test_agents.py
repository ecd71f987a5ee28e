"""Clients that call tools, against the server: python3 test_agents.py QUERN FOLDER, where the packages are kept.

The tiny model calls no tool by itself: each script has a first request whose answer must be a call, which its grammar
makes it, and the client's loop goes on from there. Exit status 77 where the packages cannot be had.
"""
import os
import sys

FOLDER = sys.argv.pop(2)

from common import Server, json, main  # noqa: E402
from venv import Scripts, python  # noqa: E402

PYTHON = python(FOLDER)
s = Server("--served-model-name", "tiny", "--api-key", "secret", "--max-num-seqs", "4")
run = Scripts(PYTHON, {
    **os.environ, "BASE": f"http://127.0.0.1:{s.port}", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1"}).run


def test_openai_parse():
    run('''
import openai, os
from typing import Literal
from pydantic import BaseModel
class Weather(BaseModel):
    city: Literal["Oslo", "Rome"]
    sure: bool
c = openai.OpenAI(base_url=os.environ["BASE"] + "/v1", api_key="secret", max_retries=0)
say = dict(model="tiny", messages=[{"role": "user", "content": "Weather?"}], temperature=0)
made = c.chat.completions.parse(**say, response_format=Weather).choices[0].message.parsed
assert isinstance(made, Weather), made
tool = openai.pydantic_function_tool(Weather, name="weather")
message = c.chat.completions.parse(**say, tools=[tool], tool_choice="required", parallel_tool_calls=False).choices[0].message
assert message.tool_calls[0].function.parsed_arguments.city in ("Oslo", "Rome")
with c.chat.completions.stream(**say, tools=[tool], tool_choice="required", parallel_tool_calls=False) as stream:
    done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
    final = stream.get_final_completion()
assert final.choices[0].finish_reason == "tool_calls"
assert done[0].parsed_arguments == message.tool_calls[0].function.parsed_arguments
assert final.choices[0].message.tool_calls[0].function.arguments == message.tool_calls[0].function.arguments
assert isinstance(c.responses.parse(model="tiny", input="Weather?", temperature=0, text_format=Weather).output_parsed, Weather)
flat = {"type": "function", **tool["function"]}
with c.responses.stream(model="tiny", input="Weather?", temperature=0, tools=[flat], tool_choice="required",
                        parallel_tool_calls=False) as stream:
    pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
    [item] = stream.get_final_response().output
assert item.type == "function_call" and "".join(pieces) == item.arguments and item.call_id
again = c.responses.create(model="tiny", max_output_tokens=4, tools=[flat], input=[
    {"role": "user", "content": "Weather?"}, item.to_dict(),
    {"type": "function_call_output", "call_id": item.call_id, "output": "Rain"}])
assert again.output_text
''')


def test_instructor():
    run('''
import instructor, openai, os
from typing import Literal
from pydantic import BaseModel, ConfigDict
class Hero(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["fox", "owl"]
    brave: bool
plain = openai.OpenAI(base_url=os.environ["BASE"] + "/v1", api_key="secret", max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    c = instructor.from_openai(plain, mode=mode)
    hero = c.chat.completions.create(model="tiny", temperature=0, response_model=Hero, max_retries=1,
                                     messages=[{"role": "user", "content": "Who?"}])
    assert isinstance(hero, Hero), hero
''')


def test_openai_agents():
    """A tool loop through both APIs: a call that must come, its result, and a last text."""
    run('''
import asyncio, openai, os
from typing import Literal
from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool,
                    set_tracing_disabled)
set_tracing_disabled(True)
asked = []
@function_tool
def weather(city: Literal["Oslo", "Rome"]) -> str:
    """Weather"""
    asked.append(city)
    return "Rain"
async def main():
    client = openai.AsyncOpenAI(base_url=os.environ["BASE"] + "/v1", api_key="secret", max_retries=0)
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=120)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        agent = Agent(name="a", instructions="Be brief.", tools=[weather], model_settings=settings,
                      model=kind(model="tiny", openai_client=client))
        done = await Runner.run(agent, "Weather?")
        assert asked and set(asked) <= {"Oslo", "Rome"} and done.final_output, (asked, done)
        assert [type(i).__name__ for i in done.new_items] == ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"]
        asked.clear()
        stream = Runner.run_streamed(agent, "Weather?")
        async for _ in stream.stream_events():
            pass
        assert asked and stream.final_output == done.final_output
        asked.clear()
asyncio.run(main())
''')


def test_pydantic_ai():
    """Output that is a tool, and another tool before it: which one the model calls is chance, so there are several runs."""
    run('''
import os
from typing import Literal
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
class Answer(BaseModel):
    kind: Literal["rain", "sun"]
asked = []
model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=os.environ["BASE"] + "/v1", api_key="secret"))
agent = Agent(model, output_type=Answer, instructions="Be brief.")
@agent.tool_plain
def look(city: Literal["Oslo", "Rome"]) -> str:
    """Look"""
    asked.append(city)
    return "Rain"
looped = False
for seed in range(40):
    asked.clear()
    try:
        done = agent.run_sync("Weather?", model_settings={"seed": seed, "temperature": 2.0, "max_tokens": 150,
                                                          "parallel_tool_calls": False})
    except Exception as e:  # the context of the tiny model is short
        if "context" not in str(e) and "token" not in str(e):
            raise
        continue
    assert done.output.kind in ("rain", "sun")
    looped = looped or len(asked) > 0
    if looped:
        break
assert looped
''')


def test_anthropic():
    run('''
import anthropic, os
c = anthropic.Anthropic(base_url=os.environ["BASE"], api_key="secret", max_retries=0)
tools = [{"name": "weather", "description": "Weather", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"]}}]
say = dict(model="tiny", max_tokens=150, tools=tools, messages=[{"role": "user", "content": "Weather?"}],
           extra_body={"temperature": 0})
must = {"type": "any", "disable_parallel_tool_use": True}
m = c.messages.create(**say, tool_choice=must)
assert m.stop_reason == "tool_use" and m.content[0].input["city"] in ("Oslo", "Rome")
with c.messages.stream(**say, tool_choice=must) as stream:
    partial = [e.partial_json for e in stream if e.type == "input_json"]
    last = stream.get_final_message()
assert last.stop_reason == "tool_use" and last.content[0].input == m.content[0].input and "".join(partial)
block = last.content[0]
more = [*say["messages"], {"role": "assistant", "content": last.content}, {"role": "user", "content": [
    {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "Rain"}]}]}]
with c.messages.stream(**{**say, "messages": more, "max_tokens": 8}) as stream:
    text = "".join(stream.text_stream)
assert text and c.messages.count_tokens(model="tiny", messages=more, tools=tools).input_tokens > 20
''')


def test_codex():
    """A body of the form that Codex sends, and the one that it sends after a call."""
    shell = {"type": "function", "name": "shell", "description": "Runs a command", "strict": False, "parameters": {
        "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string", "enum": ["ls", "-l"]},
                                                     "maxItems": 3}, "timeout_ms": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": ["command"], "additionalProperties": False}}
    body = {"model": "tiny", "instructions": "Be brief.", "stream": True, "store": False, "tool_choice": "required",
            "parallel_tool_calls": False, "prompt_cache_key": "k", "client_metadata": {"id": "x"},
            "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "medium", "summary": "auto"},
            "tools": [shell, {"type": "local_shell"}, {"type": "web_search"}], "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox."}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List"}]}]}

    def stream(body):
        c = s.connect()
        text = json.dumps(body).encode()
        c.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nConnection: close\r\n"
                  b"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        got = b"".join(iter(lambda: c.recv(65536), b""))
        c.close()
        assert got.startswith(b"HTTP/1.1 200"), got[:500]
        return [json.loads(line[6:]) for line in got.decode().splitlines() if line.startswith("data: ")]

    events = stream(body)
    [item] = events[-1]["response"]["output"]
    assert events[-1]["type"] == "response.completed" and item["type"] == "function_call" and item["name"] == "shell"
    assert set(json.loads(item["arguments"])["command"]) <= {"ls", "-l"}
    after = {**body, "tool_choice": "auto", "input": [*body["input"], {
        "type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None}, item,
        {"type": "function_call_output", "call_id": item["call_id"], "output": '{"output": "a", "metadata": {"exit_code": 0}}'}]}
    last = stream(after)[-1]
    assert last["type"] in ("response.completed", "response.incomplete") and last["response"]["output"][0]["type"] == "message"


main(globals())
