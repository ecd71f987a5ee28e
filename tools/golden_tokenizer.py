#!/usr/bin/env python3
"""Makes tests/golden/tokenizer: small tokenizers and what Hugging Face `tokenizers` says they do.

    python tools/golden_tokenizer.py [OUT]        needs: tokenizers, jinja2

Every folder OUT/<name> gets a tokenizer.json (trained here on text made here, then given the
components of the family it stands for) and cases.jsonl, one object per line: text, ids (with
the post-processor's tokens), ids_no_special, decoded, decoded_skip. Left out to keep the files small:
ids_no_special equal to ids, decoded equal to text, decoded_skip equal to decoded. OUT/chat gets chat templates and
conversations with their renderings (by jinja2, set up as transformers does). Same seed, same bytes.
"""
import copy
import json
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_PATTERN = QWEN_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
MARK = "\u2581"


# Text to train on and to test with.

def corpus(rng):
    nouns = "mill stone river grain wheel miller bread sack tower wind water flour door horse".split()
    verbs = "turns grinds carries watches opens fills counts follows hears remembers".split()
    other = ["naïve café", "Größe und Übermut", "вода и мука", "小麦磨成面粉", "風車が回る",
             "밀가루를 빻다", "ψωμί", "טחנה", "الطاحونة", "x = y[0] * 3.14;", "if (n > 0) {\n\treturn 1;\n}",
             "it's, I'll, we've, don't, I'M HERE", "2024-07-26 12:30", "🌾🍞 👩‍🌾"]
    lines = []
    for _ in range(1500):
        line = " ".join(f"The {rng.choice(nouns)} {rng.choice(verbs)} the {rng.choice(nouns)},"
                        for _ in range(rng.randint(1, 3)))
        lines.append(line[:-1] + rng.choice([".", "!", "?", "\n", "  "]))
        if rng.random() < 0.5:
            lines.append(rng.choice(other) + rng.choice(["", " ", "\n", "\n\n"]))
        if rng.random() < 0.3:
            lines.append(str(rng.randint(0, 10 ** rng.randint(1, 9))))
    return lines


FIXED = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", "The mill turns.", " The mill", "The  mill   turns    ",
    "\nThe mill\n\n\nturns\r\n\r\n \n \t\n  x", "trailing   ", "   leading", "a\n b\n  c\n   d",
    "I'm you're he'll WE'VE DON'T it'S 'Tis 'LL 'll'd'D'Ve'RE \u2019s 'ſ", "x's\ty'll", "'", "''s",
    "1 12 123 1234 12345 1234567890 3.14 1,000,000 ½ ² Ⅷ ٣٤٥ 一二三 ১২৩",
    "café cafe\u0301 Å A\u030a \u212b ﬁ ﬀ \u1e9b\u0323 q\u0307\u0323 \uac00 \u1100\u1161\u11a8",
    "a\u0301\u0302\u0327 \u0327\u0301a \u0301", "\u0344 \u0958 \u2126 \ufb1d \u0f73 \u0f71\u0f72\u0f74",
    "日本語のテキスト 中文字符 한국어 텍스트", "か\u3099 ハ\u309a ｶﾞ", "Привет, мир! Γειά σου Κόσμε",
    "שלום עולם مرحبا بالعالم", "नमस्ते दुनिया สวัสดี မြန်မာ",
    "👩‍🌾 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 ❤️ 🌾🌾🌾", "\U0001d49c\U0001f130\u24b6 ₿ € ™",
    "\x00", "a\x00b\x00\x00c", "\x01\x02\x1b[0m\x7f\x80\x9f", "\x1c\x1d\x1e\x1f \x85x",
    "a\u00a0b \u00a0 c\u00a0\u00a0d\u00a0", "a\u2003b\u2009c\u200ad\u202fe\u205ff\u3000g\u1680h",
    "zero\u200bwidth\u200cjoin\u200d er\ufeff\u2060", "\u180e a\u180eb", "line\u2028para\u2029\u2028end\x0b\x0c",
    "a\r\rb\n\rc\r\nd", " \r\n \r\n", "x \n", "x\n ", "\t\t\tif x:\n\t\t\t\ty()\n", "!!!???...\n\n", "--\r\n--",
    "http://example.com/a_b?c=d&e=f#g", "foo_bar fooBar FOO-BAR _x_ __init__", "$100 100% #1 @you (x) [y] {z}",
    "x" * 300, " " * 200, " " * 200 + "x", "\n" * 100, "ab" * 150, "1" * 100, "é" * 80, "🌾" * 40, "'s" * 50,
    "▁", "▁▁", "a▁b", "▁ a ▁b▁ ", " ▁", "Ġ Ċ ĉ", "<0x41>", "<0x0A><0xFF>", "<unk>", "Ā ā Ń",
    "\ufffd \uffff \ue000 \U0010ffff \U000e0041 \u0378", "İıſK", "ǅ ǆ ß ẞ", "a\u20dd \u0488", "x\u200dy\u200d",
    "a\U00031350b \U000323af1 \ua7cb9 \U0001e4f0\U0001e4f9x \U00010d40 \u0897\U00011f01a \U0001f6dc!",
]

SPECIALS = ["<|im_start|>user\nHello<|im_end|>\n", "<|im_start|><|im_end|>", "a<|endoftext|>b",
            "<|endoftext|> b", "a <|endoftext|>", " <|im_end|> ", "<|im_en", "<|im_start|", "<|<|im_end|>|>",
            "<think>\nhm\n</think>\n\nok", "<think><think>", "x<think>y", "<|begin_of_text|>a<|eot_id|>\n",
            "<|eot_id|><|eot_id|>  <|eot_id|>", "<s>", "</s>", "a<s>b</s>c", " <s> a </s> ", "<s> <s>", "<s>▁<s>",
            "[INST] hi [/INST] ok</s>", "[INST]hi[/INST]", "<pad>", "[L] a", "a  [L]  b", "a\t[R]\n b", "[L][R] [L]",
            "a [R] [L] b", "[R]\u00a0x", "word sword word's words word", "wordword", "word", "WORD", "é word é",
            "ﬁn fin f\u0301in", "e\u0301t\u0301 ét", "über u\u0308ber ÜBER", "<mask>", "a<mask>b <mask> c", " word"]

ALPHABETS = [
    "ab \n", " \t\r\n\u00a0\u2028x.", "'sStTrRevVmMlLdD ", "0123456789 .,a", "aeio\u0301\u0302\u0327\u0323\u0308 ",
    "a\u200d\ufe0f👩🌾🏽🇩🇪 ", "日本語テキスト。、 \n", "\x00\x01\x1f\x7f\x80a ", "é\u00e8ü Ωя ǅ\u0345", "{}[]()<>|_-=+!?.\n ",
    "▁ a<0x41>", "\u1100\u1161\u11a8\uac00\u3099か ", "the mill grinds wheat \n'", "Ġġ Ā\u00a0\u00ad",
]


def random_texts(rng, n, pieces):
    texts = []
    for i in range(n):
        alphabet = ALPHABETS[i % len(ALPHABETS)]
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 28)))
        if i % 5 == 0:
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(pieces) + text[at:]
        if i % 7 == 0:
            text += "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(12))
        texts.append(text)
    return texts


# Tokenizers.

def added(token, special=True, **flags):
    entry = {"id": 0, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special}
    entry.update(flags)
    return entry


def train(tok, lines, size, alphabet, specials=()):
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False,
                                  special_tokens=list(specials), min_frequency=2)
    tok.train_from_iterator(lines, trainer)
    return json.loads(tok.to_str())


def finish(spec, tokens, **parts):
    """Sets the parts and numbers the added tokens as `tokenizers` does."""
    spec.update(parts)
    vocab = spec["model"]["vocab"]
    following = len(vocab)
    for token in tokens:
        token["id"] = vocab.get(token["content"], following)
        following += token["id"] == following
    spec["added_tokens"] = tokens
    return spec


def byte_level(lines, pattern, size, nfc):
    tok = Tokenizer(models.BPE())
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    return train(tok, lines, size, sorted(pre_tokenizers.ByteLevel.alphabet()))


def qwen(lines):
    spec = byte_level(lines, QWEN_PATTERN, 700, True)
    tokens = [added("<|endoftext|>"), added("<|im_start|>"), added("<|im_end|>"),
              added("<think>", special=False), added("</think>", special=False)]
    post = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return finish(spec, tokens, post_processor=post)


def template(single, special):
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": special}


def llama3(lines):
    spec = byte_level(lines, LLAMA3_PATTERN, 700, False)
    spec["model"]["ignore_merges"] = True
    # Tokens that no merge reaches: only ignore_merges finds them.
    for word in ["Ġwatermill", "grindstone", "123"]:
        spec["model"]["vocab"].setdefault(word, len(spec["model"]["vocab"]))
    # The older spelling of merges.
    spec["model"]["merges"] = [f"{a} {b}" for a, b in spec["model"]["merges"]]
    tokens = [added(t) for t in ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                 "<|eot_id|>"]]
    finish(spec, tokens)
    bos = "<|begin_of_text|>"
    spec["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        template([{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                 {bos: {"id": bos, "ids": [tokens[0]["id"]], "tokens": [bos]}})]}
    return spec


def sentence_piece(lines, size, drop=()):
    """A vocabulary as a converted SentencePiece model has it: control tokens, bytes, pieces."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(MARK + "*[^" + MARK + "]*"), "isolated")
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    spec = train(tok, lines, size + len(first), [], first)
    vocab = spec["model"]["vocab"]
    for n in (2, 4, 8):  # runs of spaces are tokens
        vocab.setdefault(MARK * n, len(vocab))
    spec["model"]["merges"] += [[MARK * n, MARK * n] for n in (1, 2, 4)]
    spec["model"]["merges"] = [m for m in spec["model"]["merges"] if not set(drop) & set("".join(m))]
    spec["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    return spec


SP_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
SP_POST = template([{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                   {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}})


def sp_tokens():
    return [added("<unk>"), added("<s>"), added("</s>")]


def llama2(lines):
    norm = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}
    return finish(sentence_piece(lines, 500), sp_tokens(), normalizer=norm, pre_tokenizer=None,
                  decoder=SP_DECODER, post_processor=SP_POST)


def mistral(lines):
    spec = sentence_piece(lines, 500)
    spec["model"]["ignore_merges"] = False
    tokens = sp_tokens() + [added("[INST]"), added("[/INST]"), added("word", special=False, normalized=True)]
    pre = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    return finish(spec, tokens, normalizer=None, pre_tokenizer=pre, decoder=SP_DECODER, post_processor=SP_POST)


def metaspace(lines):
    """Metaspace that splits, NFKC and lower case, no byte fallback, unknown tokens one by one."""
    spec = sentence_piece(lines, 400)
    spec["model"].update(byte_fallback=False, fuse_unk=False)
    norm = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"},
                                                {"type": "Strip", "strip_left": True, "strip_right": False}]}
    pre = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}
    dec = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}
    post = template([{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                    {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                     "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}})
    tokens = sp_tokens() + [added("ﬁN", special=False, normalized=True), added("Über", special=False, normalized=True)]
    return finish(spec, tokens, normalizer=norm, pre_tokenizer=pre, decoder=dec, post_processor=post)


def gpt2(lines):
    """GPT-2's own pattern and prefix space, and added tokens with every flag."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFD()
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    spec = train(tok, lines, 600, sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokens = [added("<|endoftext|>"), added("<mask>", lstrip=True), added("[L]", lstrip=True, special=False),
              added("[R]", rstrip=True, special=False), added("word", single_word=True, special=False),
              added("ét", special=False, normalized=True), added("über", special=False, normalized=True, single_word=True),
              added("<|endo", special=False), added(" \n ", special=False), added("Å", special=True, normalized=True)]
    return finish(spec, tokens)


def pieces(lines):
    """Every way to split, no decoder."""
    tok = Tokenizer(models.BPE())
    spec = train(tok, lines, 400, sorted(set("".join(lines))))
    split = lambda pattern, behavior, invert=False: {  # noqa: E731
        "type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    pre = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": False}, {"type": "Punctuation", "behavior": "MergedWithPrevious"},
        split({"Regex": r"[\s\w]+|(?=\d)"}, "Isolated", True), split({"String": "e"}, "MergedWithNext"),
        split({"Regex": "[aio]"}, "Contiguous"), split({"Regex": r"\s*\n"}, "MergedWithPrevious"),
        {"type": "Sequence", "pretokenizers": [split({"String": " "}, "Removed"), split({"Regex": "(?<=t)h"}, "MergedWithNext", True)]},
        {"type": "WhitespaceSplit"}]}
    norm = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": "[xX]+"}, "content": "ks"},
                                                {"type": "NFKD"}, {"type": "Replace", "pattern": {"String": "  "}, "content": " "}]}
    spec["model"].update(unk_token=".", fuse_unk=True)
    return finish(spec, [added("<s>"), added("mill", special=False, normalized=True, single_word=True)],
                  normalizer=norm, pre_tokenizer=pre, decoder=None, post_processor=None)


MAKERS = {"qwen": qwen, "llama3": llama3, "llama2": llama2, "mistral": mistral, "metaspace": metaspace, "gpt2": gpt2,
          "pieces": pieces}


def shorten(row):
    """Leaves out what follows from the rest, see the top."""
    if row["decoded_skip"] == row["decoded"]:
        del row["decoded_skip"]
    if row.get("text") == row["decoded"]:
        del row["decoded"]
    if row.get("ids_no_special") == row["ids"]:
        del row["ids_no_special"]
    return row


def case(tok, text):
    ids = tok.encode(text).ids
    plain = tok.encode(text, add_special_tokens=False).ids
    return shorten({"text": text, "ids": ids, "ids_no_special": plain,
                    "decoded": tok.decode(ids, skip_special_tokens=False),
                    "decoded_skip": tok.decode(ids, skip_special_tokens=True)})


def loose_ids(tok, rng, n):
    """Ids in no order: half characters, odd runs of bytes."""
    cases = []
    for _ in range(n):
        ids = [rng.randrange(min(tok.get_vocab_size(), 270 if rng.random() < 0.5 else 10 ** 6))
               for _ in range(rng.randint(1, 9))]
        cases.append(shorten({"ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False),
                              "decoded_skip": tok.decode(ids, skip_special_tokens=True)}))
    return cases


def dump(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
            # Line and paragraph separators would break editors, not JSON.
            f.write(text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") + "\n")


def make_tokenizers(out):
    lines = corpus(random.Random(1))
    for name, maker in MAKERS.items():
        spec = maker(copy.copy(lines))
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
        tok = Tokenizer.from_str(text)
        rng = random.Random(name)
        texts = FIXED + SPECIALS + random_texts(rng, 210, SPECIALS)
        rows = [case(tok, t) for t in texts] + loose_ids(tok, rng, 60)
        dump(folder / "cases.jsonl", rows)
        print(name, "vocabulary", tok.get_vocab_size(), "cases", len(rows))


# Chat templates: the official programs' rules for plain conversations, in our words.

CHAT_QWEN2 = r"""{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

CHAT_HERMES = (r"{{bos_token}}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
          r"'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

CHAT_QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- endif %}
    {{- "\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

CHAT_QWEN3 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(open=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.open = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

CHAT_QWQ = r"""{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system") %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %}
"""

ALTERNATE = "{{ raise_exception('roles must alternate') }}"
CHAT_LLAMA2 = (r"{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
          r"{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
          r"{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
          r"{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}" + ALTERNATE + r"{% endif %}"
          r"{% if loop.index0 == 0 and system_message != false %}"
          r"{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}"
          r"{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
          r"{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
          r"{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")

CHAT_LLAMA3 = (r"{% set loop_messages = messages %}{% for message in loop_messages %}"
          r"{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>" "\n\n'"
          r"+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
          r"{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
          r"{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>" "\n\n' }}{% endif %}")
CHAT_LLAMA3_ALWAYS = CHAT_LLAMA3.replace("{% if add_generation_prompt %}", "").removesuffix("{% endif %}")

CHAT_LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- The system message has a place of its own. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- First the system block. #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is defined and tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- raise_exception("no tools here") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
CHAT_LLAMA32 = CHAT_LLAMA31.replace('    {%- set date_string = "26 Jul 2024" %}\n', """    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
""")

CHAT_MISTRAL_OLD = (r"{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
               + ALTERNATE + r"{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
               r"{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}" + ALTERNATE +
               r"{% endif %}{% endfor %}")
CHAT_MISTRAL_OLDEST = CHAT_MISTRAL_OLD.replace("message['content'] + eos_token", "message['content'] + eos_token + ' '")


def mistral_template(before, after, answer, place):
    return r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.PLACE and system_message is defined %}
            {{- "BEFORE" + system_message + "\n\n" + message["content"] + "AFTER" }}
        {%- else %}
            {{- "BEFORE" + message["content"] + "AFTER" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- ANSWER + eos_token}}
    {%- else %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
{%- endfor %}
""".replace("PLACE", place).replace("BEFORE", before).replace("AFTER", after).replace("ANSWER", answer)


BOS3, EOS3 = "<|begin_of_text|>", "<|eot_id|>"
TEMPLATES = {
    "qwen2": (CHAT_QWEN2, None, "<|im_end|>"), "qwen2.5": (CHAT_QWEN25, None, "<|im_end|>"), "qwen3": (CHAT_QWEN3, None, "<|im_end|>"),
    "qwq": (CHAT_QWQ, None, "<|im_end|>"), "hermes": (CHAT_HERMES, "<s>", "<|im_end|>"), "llama2": (CHAT_LLAMA2, "<s>", "</s>"),
    "llama3": (CHAT_LLAMA3, BOS3, EOS3), "llama3-always": (CHAT_LLAMA3_ALWAYS, BOS3, EOS3), "llama3.1": (CHAT_LLAMA31, BOS3, EOS3),
    "llama3.2": (CHAT_LLAMA32, BOS3, EOS3), "mistral-old": (CHAT_MISTRAL_OLD, "<s>", "</s>"),
    "mistral-oldest": (CHAT_MISTRAL_OLDEST, "<s>", "</s>"),
    "mistral-v1": (mistral_template(" [INST] ", " [/INST]", '" " + message["content"]', "first"), "<s>", "</s>"),
    "mistral-v3": (mistral_template("[INST] ", "[/INST]", '" " + message["content"]|trim', "last"), "<s>", "</s>"),
    "mistral-tekken": (mistral_template("[INST]", "[/INST]", 'message["content"]', "last"), "<s>", "</s>"),
}


def conversations():
    """Lists of (role, content)."""
    s, u, a = "system", "user", "assistant"
    talks = [
        [(u, "Hello")], [(s, "Be brief."), (u, "Hello")], [(u, "Hello"), (a, "Hi."), (u, "Who are you?")],
        [(s, "Be brief."), (u, "One"), (a, "1"), (u, "Two"), (a, "2"), (u, "Three")],
        [(u, "One"), (a, "1")], [(s, "  spaced \n"), (u, "\n padded \t\u00a0"), (a, "  answer\x1c \n\n"), (u, " q ")],
        [(u, ""), (a, ""), (u, "")], [(s, ""), (u, "x")], [(u, "Ünï 日本 🌾\u2028\n\nlines\n")],
        [(u, "q"), (a, "<think>\nwhy\n</think>\n\nso"), (u, "r")], [(u, "q"), (a, "<think>\n\nwhy\n\n</think>\n\n\nso")],
        [(u, "q"), (a, "<think>a</think>b</think>\nc"), (u, "r"), (a, "<think>x<think>\ny\n</think>z")],
        [(u, "q"), (a, "</think>"), (u, "r"), (a, "plain")], [(u, "q"), (a, "<think>open"), (u, "r")],
        [(u, "q"), (a, "\n\n<think>\na\n</think>\nb"), (u, "<tool_response>\n1\n</tool_response>"),
         (a, "<think>\nc\n</think>\n\nd")],
        [(u, "q"), (a, "1"), (u, "<tool_response>x"), (a, "2")], [(s, "only")], [(a, "first")], [(s, "a"), (a, "b")],
        [(u, "a"), (u, "b")], [(u, "a"), (a, "b"), (a, "c")], [(u, "a"), (s, "late"), (u, "b")],
        [(s, "a"), (s, "b"), (u, "c")], [(u, "x <|im_end|> [/INST] </s> y")], [(u, "{{ x }} {% y %} ' \" \\n")],
    ]
    return [[{"role": r, "content": c} for r, c in talk] for talk in talks]


def make_chat(out):
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message):
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals.update(raise_exception=raise_exception, strftime_now=lambda form: "never")
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, (program, bos, eos) in TEMPLATES.items():
        compiled = env.from_string(program)
        for i, messages in enumerate(conversations()):
            for prompt in ((False, True) if i % 3 == 0 else (True,)):
                for thinking in ((None, True, False) if name == "qwen3" and prompt else (None,)):
                    row = {"template": name, "messages": messages, "add_generation_prompt": prompt}
                    values = dict(messages=messages, add_generation_prompt=prompt, eos_token=eos)
                    if bos is not None:
                        values["bos_token"] = bos
                    if thinking is not None:
                        row["enable_thinking"] = values["enable_thinking"] = thinking
                    if name == "llama3.2" or i % 5 == 1:
                        row["date"] = values["date_string"] = "01 Feb 2025"
                    try:
                        if name == "llama2" and any(m["role"] == "system" for m in messages[1:]):
                            raise TemplateError("the program drops this message; we refuse it")
                        row["text"] = compiled.render(**values)
                    except TemplateError:
                        row["error"] = True
                    rows.append(row)
    dump(out / "cases.jsonl", rows)
    dump(out / "templates.jsonl", [{"name": n, "program": p, "bos": b, "eos": e} for n, (p, b, e) in TEMPLATES.items()])
    print("chat", len(TEMPLATES), "templates", len(rows), "cases")


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/tokenizer")
    make_tokenizers(out)
    make_chat(out / "chat")


if __name__ == "__main__":
    main()
