#!/usr/bin/env python3
"""Makes tests/golden/tokenizer: small tokenizers and what Hugging Face `tokenizers` says they do.

    python tools/golden_tokenizer.py [OUT]        needs: tokenizers

Every folder OUT/<name> gets a tokenizer.json (trained here on text made here, then given the
components of the family it stands for) and cases.jsonl, one object per line: text, ids (with
the post-processor's tokens), ids_no_special, decoded, decoded_skip. Left out to keep the files small:
ids_no_special equal to ids, decoded equal to text, decoded_skip equal to decoded. Same seed, same bytes.
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


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/tokenizer")
    make_tokenizers(out)


if __name__ == "__main__":
    main()
