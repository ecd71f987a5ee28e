#!/usr/bin/env python3
"""Makes tests/golden/directories: tokenizer directories as people have them, and what transformers does with them.

    python tools/golden_directories.py [OUT]        needs: transformers, tokenizers

Every folder OUT/<name> gets a tokenizer.json, the files beside it and cases.jsonl, in golden_tokenizer.py's form. The
tokenizer is one and the same small one; what changes is in the functions below. Same versions, same bytes."""
import json
import logging
import pathlib
import random
import sys

import golden_tokenizer as base
from transformers import PreTrainedTokenizerFast

TEXTS = base.FIXED[:40] + base.SPECIALS + [
    "x <think> a", "<think>\n\nb", "a<think>", "<tool>  call </tool>", "the word sword <eot>\n", "<img> <pad> <unk>",
    "[MASK]a [SEP] b[CLS]", "naïve_x 風車 x\u200dy ½ ²³ _a_", "don't|stop||now", "CAFÉ cafe\u0301 \u1e9b\u0323"]


def spec(**parts):
    """The tokenizer, with the parts given; added tokens: <s>, </s>, <think>."""
    made = base.byte_level(base.corpus(random.Random(1)), base.QWEN_PATTERN, 330, False)
    tokens = [base.added("<s>"), base.added("</s>"), base.added("<think>", special=False)]
    return base.finish(made, tokens, **parts)


def token(content, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, **flags}


def added_tokens_decoder():
    """Other flags for a token that is there, new ones out of order, special_tokens_map.json without effect."""
    return spec(), {"tokenizer_config.json": {
        "model_max_length": 10 ** 30, "bos_token": "<s>", "eos_token": "<eot>", "pad_token": "<pad>",
        "added_tokens_decoder": {
            "345": token("</tool>", special=False), "332": token("<think>", lstrip=True, rstrip=True, special=True),
            "340": token("<tool>", rstrip=True, special=False), "339": token("<eot>", special=True)}},
        "special_tokens_map.json": {"eos_token": "</s>", "pad_token": "<img>"}}


def special_tokens_map():
    """The older files: a name in special_tokens_map.json wins, added_tokens.json adds."""
    return spec(), {"tokenizer_config.json": {"eos_token": "</s>", "unk_token": "<unk>"},
                    "special_tokens_map.json": {"bos_token": token("<s>"), "eos_token": token("<eot>", rstrip=True),
                                                "additional_special_tokens": ["<img>", "<think>"]},
                    "added_tokens.json": {"</tool>": 341, "<tool>": 340, "<s>": 330, "<eot>": 350}}


def named_tokens():
    """Tokens that only their names make special; names of this model's own; lists of both spellings."""
    return spec(), {"tokenizer_config.json": {
        "bos_token": "<s>", "cls_token": {"__type": "AddedToken", **token("[CLS]", lstrip=True)}, "mask_token": "[MASK]",
        "sep_token": "[SEP]", "image_token": "<img>", "add_bos_token": True,
        "extra_special_tokens": ["<eot>", {"__type": "AddedToken", **token("<pad>", rstrip=True, special=False)}]}}


def named_object():
    return spec(), {"tokenizer_config.json": {"eos_token": "word", "extra_special_tokens": {"tool_token": "<tool>"},
                                              "additional_special_tokens": ["</tool>"]}}


def whitespace():
    parts = [{"type": "Whitespace"}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                      "use_regex": False}]
    return spec(pre_tokenizer={"type": "Sequence", "pretokenizers": parts}), {}


def bert():
    parts = [{"type": "BertPreTokenizer"}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                            "use_regex": False}]
    forms = [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    return spec(pre_tokenizer={"type": "Sequence", "pretokenizers": parts},
                normalizer={"type": "Sequence", "normalizers": forms},
                post_processor={"type": "BertProcessing", "sep": ["</s>", 331], "cls": ["<s>", 330]}), {}


def roberta():
    return spec(post_processor={"type": "RobertaProcessing", "sep": ["</s>", 331], "cls": ["<s>", 330],
                                "trim_offsets": True, "add_prefix_space": False}), {}


def delimiter():
    parts = [{"type": "CharDelimiterSplit", "delimiter": "|"}, {"type": "ByteLevel", "add_prefix_space": True,
                                                               "trim_offsets": True, "use_regex": True}]
    return spec(pre_tokenizer={"type": "Sequence", "pretokenizers": parts}), {}


def special_item(name):
    return {"SpecialToken": {"id": name, "type_id": 0}}


def post_sequence():
    """Templates behind each other and behind RobertaProcessing."""
    a, b = ({"Sequence": {"id": x, "type_id": 0}} for x in "AB")
    ids = {"<s>": {"id": "<s>", "ids": [330], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [331], "tokens": ["</s>"]}}
    first = {"type": "TemplateProcessing", "single": [special_item("<s>"), a], "pair": [a, b], "special_tokens": ids}
    second = {"type": "TemplateProcessing", "single": [a, special_item("</s>")],
              "pair": [b, special_item("</s>"), a, special_item("<s>")], "special_tokens": ids}
    roberta_part = {"type": "RobertaProcessing", "sep": ["</s>", 331], "cls": ["<s>", 330], "trim_offsets": True,
                    "add_prefix_space": False}
    return spec(post_processor={"type": "Sequence", "processors": [first, second, roberta_part]}), {}


MAKERS = [added_tokens_decoder, special_tokens_map, named_tokens, named_object, whitespace, bert, roberta, delimiter,
          post_sequence]


def case(tok, text):
    ids = tok(text)["input_ids"]
    return base.shorten({"text": text, "ids": ids, "ids_no_special": tok(text, add_special_tokens=False)["input_ids"],
                         "decoded": tok.decode(ids), "decoded_skip": tok.decode(ids, skip_special_tokens=True)})


def main():
    logging.disable(logging.WARNING)
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/directories")
    for make in MAKERS:
        folder = out / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer, files = make()
        for name, content in {"tokenizer.json": tokenizer, **files}.items():
            text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
            (folder / name).write_text(text + "\n", encoding="utf-8")
        tok = PreTrainedTokenizerFast.from_pretrained(str(folder))
        base.dump(folder / "cases.jsonl", [case(tok, t) for t in TEXTS])
        base.dump(folder / "eos.jsonl", [{"eos": tok.eos_token_id}])
        print(make.__name__, len(TEXTS), "cases")


if __name__ == "__main__":
    main()
