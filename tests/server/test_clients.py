"""The official clients against the server: python3 test_clients.py QUERN FOLDER, where the packages are kept.

The scripts below run in that folder's Python, with the server's address in BASE. Exit status 77 where the packages
cannot be had.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

FOLDER = sys.argv.pop(2)

from common import Server, json, main  # noqa: E402
from venv import Scripts, python  # noqa: E402

PYTHON = python(FOLDER)
s = Server("--served-model-name", "tiny", "--api-key", "secret", "--max-num-seqs", "4", "--max-queue", "2")
run = Scripts(PYTHON, {
    **os.environ, "BASE": f"http://127.0.0.1:{s.port}", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1"}).run


def test_openai():
    run('''
import openai, os
c = openai.OpenAI(base_url=os.environ["BASE"] + "/v1", api_key="secret", max_retries=0)
say = dict(model="tiny", messages=[{"role": "user", "content": "Tell me a story"}], max_tokens=12, temperature=0)
assert [m.id for m in c.models.list()] == ["tiny"] and c.models.retrieve("tiny").id == "tiny"
whole = c.chat.completions.create(**say, logprobs=True, top_logprobs=2, seed=1, n=2)
text = whole.choices[0].message.content
assert whole.usage.completion_tokens == 24 and text == whole.choices[1].message.content
assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
parts = list(c.chat.completions.create(**say, stream=True, stream_options={"include_usage": True}))
assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == text
assert parts[-1].usage.completion_tokens == 12
with c.chat.completions.stream(**say) as stream:
    pieces = [e.delta for e in stream if e.type == "content.delta"]
assert "".join(pieces) == text
done = c.completions.create(model="tiny", prompt=["Once", "There"], max_tokens=4, echo=True, logprobs=1, temperature=0)
assert done.choices[1].text.startswith("There") and done.choices[0].logprobs.token_logprobs[0] is None
assert "".join(p.choices[0].text for p in c.completions.create(model="tiny", prompt="Once", max_tokens=4, temperature=0,
                                                               stream=True)) == done.choices[0].text[4:]
for wrong, error in [(dict(model="absent"), openai.NotFoundError), (dict(temperature=-1), openai.BadRequestError),
                     (dict(tools=[{"type": "function", "function": {"name": "a b"}}]), openai.BadRequestError),
                     (dict(n=16), openai.RateLimitError)]:
    try:
        c.chat.completions.create(**{**say, **wrong})
        raise SystemExit(f"{wrong} passed")
    except error as e:
        assert e.body["message"] and (e.param or error is openai.RateLimitError), e.body
try:
    openai.OpenAI(base_url=os.environ["BASE"] + "/v1", api_key="wrong").models.list()
    raise SystemExit("a wrong key passed")
except openai.AuthenticationError as e:
    assert e.code == "invalid_api_key"
r = c.responses.create(model="tiny", input="Tell me a story", max_output_tokens=12, temperature=0)
assert r.output_text == text and r.status == "incomplete" and r.usage.output_tokens == 12
with c.responses.stream(model="tiny", input="Tell me a story", max_output_tokens=12, temperature=0) as stream:
    pieces = [e.delta for e in stream if e.type == "response.output_text.delta"]
assert "".join(pieces) == text
''')


def test_openai_async():
    run('''
import asyncio, openai, os
async def main():
    c = openai.AsyncOpenAI(base_url=os.environ["BASE"] + "/v1", api_key="secret", max_retries=8)
    async def one(i):
        r = await c.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=8,
                                            temperature=0)
        return r.choices[0].message.content
    texts = await asyncio.gather(*[one(i) for i in range(12)])
    assert len(set(texts)) == 1
    stream = await c.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=900,
                                             stream=True, extra_body={"ignore_eos": True})
    async for _ in stream:
        break
    await stream.close()
asyncio.run(main())
''')
    s.until(s_idle, 3)


def s_idle():
    return s.request("GET", "/load", headers={"x-api-key": "secret"})[2]["server_load"] == 0


def test_anthropic():
    run('''
import anthropic, os
c = anthropic.Anthropic(base_url=os.environ["BASE"], api_key="secret", max_retries=0)
say = dict(model="tiny", max_tokens=12, messages=[{"role": "user", "content": "Tell me a story"}],
           extra_body={"temperature": 0})
m = c.messages.create(**say, system="Be brief.")
assert m.stop_reason == "max_tokens" and m.usage.output_tokens == 12 and m.content[0].type == "text"
with c.messages.stream(**say, system=[{"type": "text", "text": "Be brief."}]) as stream:
    text = "".join(stream.text_stream)
    last = stream.get_final_message()
assert text == m.content[0].text == last.content[0].text and last.usage.output_tokens == 12
assert c.messages.count_tokens(model="tiny", messages=say["messages"]).input_tokens > 0
for wrong, error in [(dict(model="absent"), anthropic.NotFoundError),
                     (dict(messages=[{"role": "user", "content": [{"type": "image", "source": {
                         "type": "base64", "media_type": "image/png", "data": ""}}]}]), anthropic.BadRequestError)]:
    try:
        c.messages.create(**{**say, **wrong})
        raise SystemExit(f"{wrong} passed")
    except error as e:
        assert e.body["type"] == "error" and e.body["error"]["message"]
''')


def test_litellm():
    run('''
import litellm, os
say = dict(model="openai/tiny", api_base=os.environ["BASE"] + "/v1", api_key="secret", max_tokens=12, temperature=0,
           messages=[{"role": "user", "content": "Tell me a story"}])
text = litellm.completion(**say).choices[0].message.content
assert "".join(p.choices[0].delta.content or "" for p in litellm.completion(**say, stream=True)) == text
claude = litellm.completion(**{**say, "model": "anthropic/tiny", "api_base": os.environ["BASE"]})
assert claude.choices[0].message.content == text
try:
    litellm.completion(**{**say, "model": "openai/absent"})
    raise SystemExit("an absent model passed")
except litellm.NotFoundError:
    pass
''')


def test_langchain():
    run('''
import os
from langchain_openai import ChatOpenAI, OpenAI
chat = ChatOpenAI(base_url=os.environ["BASE"] + "/v1", api_key="secret", model="tiny", max_tokens=12, temperature=0)
text = chat.invoke("Tell me a story").content
assert "".join(p.content for p in chat.stream("Tell me a story")) == text
assert [r.content for r in chat.batch(["Tell me a story"] * 3)] == [text] * 3
assert chat.invoke([("system", "Be brief."), ("human", "Hi")]).usage_metadata["output_tokens"] > 0
plain = OpenAI(base_url=os.environ["BASE"] + "/v1", api_key="secret", model="tiny", max_tokens=4, temperature=0)
assert plain.invoke("Once")
''')


TASK = """
task: quern_stories
dataset_path: json
dataset_kwargs:
  data_files: {folder}/stories.json
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


def test_lm_eval():
    """Log-likelihoods by `local-completions`, with the server's own tokenizer, which it asks for without a
    key: the story goes on as stories do."""
    stories = [{"text": "Once upon", "choices": [" a time", " the water"], "answer": 0},
               {"text": "Once upon a time, a little", "choices": [" because", " girl"], "answer": 1},
               {"text": "Once upon a", "choices": [" time", " walked"], "answer": 0}]
    with tempfile.TemporaryDirectory() as folder, Server("--served-model-name", "tiny") as plain:
        pathlib.Path(folder, "stories.json").write_text("".join(json.dumps(r) + "\n" for r in stories))
        pathlib.Path(folder, "stories.yaml").write_text(TASK.format(folder=folder))
        done = subprocess.run([PYTHON, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args",
                               f"model=tiny,base_url=http://127.0.0.1:{plain.port}/v1/completions,num_concurrent=2,max_retries=3,"
                               "tokenizer_backend=remote,max_length=1024", "--tasks", "quern_stories", "--include_path", folder,
                               "--output_path", folder], capture_output=True, text=True, timeout=280, cwd=folder, env={
                                   **os.environ, "OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                                   "HF_HOME": folder, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})
        assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-4000:]
        results = [json.loads(p.read_text()) for p in pathlib.Path(folder).rglob("results*.json")]
        assert results and results[0]["results"]["quern_stories"]["acc,none"] == 1.0, results


main(globals())
