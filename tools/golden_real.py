#!/usr/bin/env python3
"""What transformers makes of the model of `make real`: tests/real/ids.json.

    python tools/golden_real.py FOLDER        FOLDER: what tools/real_model.py wrote; needs torch, transformers

Greedy continuations in float32 of the weights as stored; texts through the tokenizer and the chat template."""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "real" / "ids.json"
TEXTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):\n    ", "1, 2, 3, 5, 8, 13,",
         "Gravity is", "¿Dónde está la biblioteca?"]
CHATS = ["Hello!", "What is the capital of France?", "Write a haiku about a mill.", "Why is the sky blue?"]
NEW_TOKENS = 32


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = TEXTS + [tokenizer.apply_chat_template([{"role": "user", "content": c}], tokenize=False,
                                                   add_generation_prompt=True) for c in CHATS]
    rows = []
    for text in texts:
        prompt = tokenizer(text)["input_ids"]
        ids, margins, new, cache = list(prompt), [], list(prompt), None
        with torch.no_grad():
            for _ in range(NEW_TOKENS):
                result = network(torch.tensor([new]), past_key_values=cache, use_cache=True)
                logits, cache = result.logits[0, -1], result.past_key_values
                best, second = torch.topk(logits, 2).values.tolist()
                margins.append(round(best - second, 5))
                new = [int(logits.argmax())]
                ids += new
        rows.append({"text": text, "prompt_ids": prompt, "ids": ids[len(prompt):], "margins": margins})
        print(repr(tokenizer.decode(ids)), "least margin", min(margins))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(" " + json.dumps(r, ensure_ascii=False) for r in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
