"""Documents, tokenizer and packed token rows, all from seeds.

A document is a story or a conversation in ChatML, closed by <|endoftext|>. Rows hold whole documents
up to ROW tokens; every row starts with a document, so that position 0 means what it means later.
Tokens that are given and not learnt (system and user turns, padding) carry the NO_LOSS bit.

    python3 data.py      trains the tokenizer and writes the tokenizer files to models/tiny
"""
import json
import pathlib
import random

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

import chat
from grammar import paragraphs, story

OUT = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB = 2560
ROW = 1024
NO_LOSS = 1 << 15
DOCUMENTS_PER_SHARD = 4000
HELD_OUT = 1 << 20  # shard numbers from here on are never trained on

# The split of the Qwen tokenizers: contractions, words, single digits, punctuation, white space.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{%- if tools -%}{{- '<|im_start|>system\\n' + (messages[0]['content'] + '\\n' if messages[0]['role'] == 'system' else '') -}}"
    "{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}{%- if not (tools and loop.first and message['role'] == 'system') -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- '<tool_call>\\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' + call['function']['arguments'] | tojson"
    " + '}\\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}")


def document(rng):
    """A list of (text, learnt) pieces."""
    if rng.random() < .5:
        text = story(rng)
        return [((paragraphs(rng, text) if rng.random() < .6 else text) + SPECIAL[0], True)]
    pieces = []
    for role, text in chat.conversation(rng):
        if role == "assistant":
            pieces += [("<|im_start|>assistant\n", False), (text + "<|im_end|>", True), ("\n", False)]
        else:
            pieces.append((f"<|im_start|>{role}\n{text}<|im_end|>\n", False))
    pieces.append((SPECIAL[0], True))
    return pieces


def train_tokenizer(seed=7, documents=60000):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(SPECIAL), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    rng = random.Random(seed)

    def texts():
        for _ in range(documents):
            text = "".join(piece for piece, _ in document(rng))
            for mark in SPECIAL:
                text = text.replace(mark, "")
            yield text

    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def write_tokenizer(tokenizer, out):
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "unk_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False, "model_max_length": ROW,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(t)): {"content": t, "lstrip": False, "normalized": False,
                                            "rstrip": False, "single_word": False, "special": True}
            for t in SPECIAL},
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def load_tokenizer():
    return Tokenizer.from_file(str(OUT / "tokenizer.json"))


def shard(number, seed=2026, documents=DOCUMENTS_PER_SHARD, keep=None):
    """Packed rows [n, ROW] of uint16. keep: "story" or "chat" to take one sort of document only."""
    rng = random.Random(seed * 10_000_019 + number)
    tokenizer = load_tokenizer()
    tokenizer.encode_special_tokens = False
    texts, learnt, owner = [], [], []
    for i in range(documents):
        pieces = document(rng)
        if keep and (len(pieces) == 1) != (keep == "story"):
            continue
        for text, learn in pieces:
            texts.append(text)
            learnt.append(learn)
            owner.append(i)
    encoded = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    documents_ids = {}
    for ids, learn, i in zip(encoded, learnt, owner):
        documents_ids.setdefault(i, []).extend(ids if learn else [t | NO_LOSS for t in ids])
    pad = tokenizer.token_to_id(SPECIAL[0]) | NO_LOSS
    rows, row = [], []
    for ids in documents_ids.values():
        ids = ids[:ROW]
        if len(row) + len(ids) > ROW:
            rows.append(row + [pad] * (ROW - len(row)))
            row = []
        row = row + ids
    rows.append(row + [pad] * (ROW - len(row)))
    return np.array(rows, dtype=np.uint16)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    write_tokenizer(train_tokenizer(), OUT)
    print("tokenizer written to", OUT)
