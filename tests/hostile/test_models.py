"""Model directories: config.json, generation_config.json, safetensors and their index."""
import json
import os
import pathlib

from hostile import (GOLDEN, Hostile, changed, generate, read_safetensors, removed,
                     write_safetensors)

h = Hostile(half="QN_TEST_SHORT" in os.environ)
QWEN3 = GOLDEN / "qwen3"
SHARDED = GOLDEN / "mistral-window"
CONFIG = json.loads((QWEN3 / "config.json").read_text())
INTEGERS = ["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size",
            "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
            "eos_token_id", "bos_token_id"]
NUMBERS = ["rms_norm_eps", "rope_theta", "partial_rotary_factor"]
FLAGS = ["tie_word_embeddings", "attention_bias", "use_sliding_window"]
STRINGS = ["hidden_act", "dtype", "torch_dtype"]
ARRAYS = ["architectures", "layer_types"]
OBJECTS = ["rope_scaling", "rope_parameters", "quantization_config"]


def config(name, value, *words, codes=(1,), base=QWEN3, **more):
    """A case with this config.json: an object, text, or bytes."""
    d = h.folder(base)
    raw = value if isinstance(value, bytes) else (
        value if isinstance(value, str) else json.dumps(value)).encode()
    (d / "config.json").write_bytes(raw)
    h.run("config " + name, generate(d), ("config.json", *words), codes, **more)


def wrong_types():
    kinds = {"text": "x", "true": True, "list": [[]], "object": {"a": 1}, "half": 1.5,
             "negative": -1, "huge": 2**62, "many": 1e300, "one": 1}
    good = {  # kinds that are a value of the field's type, though perhaps not a sensible one
        **{f: {"negative", "huge", "one"} for f in INTEGERS},
        **{f: {"half", "negative", "huge", "many", "one"} for f in NUMBERS},
        **{f: {"true"} for f in FLAGS}, **{f: {"text"} for f in STRINGS},
        **{f: {"list"} for f in ARRAYS}, **{f: {"object"} for f in OBJECTS}}
    for field in good:
        for kind, value in kinds.items():
            if kind in good[field] and kind in ("one", "true", "half", "object", "text"):
                continue
            if field == "partial_rotary_factor" and value == 1:
                continue
            if field in ("eos_token_id", "bos_token_id") and kind in ("negative", "huge"):
                continue  # no token of the vocabulary: it ends nothing
            if field == "architectures" and kind == "object":
                value = {"0": "Qwen3ForCausalLM"}
            # negative ids and numbers, and sizes beyond every limit, are refused by name as well
            base = CONFIG
            hidden_by = {"rope_theta": "rope_parameters", "dtype": "torch_dtype"}.get(field)
            if hidden_by in CONFIG:
                base = changed(CONFIG, [hidden_by], removed)
            config(f"{field} {kind}", {**base, field: value}, field)
    for field in ["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size",
                  "num_attention_heads", "max_position_embeddings"]:
        config(f"{field} zero", {**CONFIG, field: 0}, field)
    for field in ["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size",
                  "num_attention_heads", "architectures"]:
        base = changed(CONFIG, [field], removed)
        base.pop("model_type", None)
        config(f"{field} missing", base, field)
        config(f"{field} null", {**base, field: None}, field)


def lying_sizes():
    """Sizes that the weights do not have: refused before anything is compiled or allocated."""
    for field, value in [("num_hidden_layers", 512), ("hidden_size", 65536),
                         ("intermediate_size", 65536), ("vocab_size", 4194304),
                         ("num_attention_heads", 512), ("head_dim", 512), ("head_dim", 2),
                         ("num_key_value_heads", 1), ("num_hidden_layers", 3),
                         ("vocab_size", CONFIG["vocab_size"] + 1), ("hidden_size", 66)]:
        d = h.folder(QWEN3)
        c = changed(CONFIG, [field], value)
        c.pop("layer_types", None)
        (d / "config.json").write_text(json.dumps(c))
        h.run(f"lying {field} {value}", generate(d), ("config.json" if (field, value) in [
            ("num_attention_heads", 512)] else "",), resident=200 << 20)
    config("layers and types", {**CONFIG, "num_hidden_layers": 1, "layer_types": []}, "layer_types")
    config("odd head", {**CONFIG, "head_dim": 33}, "head_dim")
    config("heads do not divide", {**CONFIG, "num_attention_heads": 3, "num_key_value_heads": 2},
           "num_key_value_heads")
    config("eos many", {**CONFIG, "eos_token_id": list(range(100))}, "eos_token_id")


def rope():
    scale = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 64}
    for key in ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]:
        for value in [None, "x", -1, 0, 1e300, [], True]:
            if value is None and key == "original_max_position_embeddings":
                continue  # max_position_embeddings then
            config(f"rope {key} {value}", {**CONFIG, "rope_scaling": {**scale, key: value}}, key)
    for key, values in {"factor": ["x", -1, 0.5, 1e300, [], True], "beta_fast": ["x", -1, 1e300],
                        "attention_factor": ["x", -1, 1e300], "mscale": ["x", -1, 1e300],
                        "truncate": ["x", 7], "original_max_position_embeddings": ["x", 0, -1, 1e300]}.items():
        for value in values:
            config(f"yarn {key} {value}", {**CONFIG, "rope_scaling": {
                "rope_type": "yarn", "factor": 4.0, key: value}}, key)
    half = CONFIG["head_dim"] // 2
    for key in ["short_factor", "long_factor"]:
        for value in [None, 1, [], [1] * (half + 1), [0] * half, ["x"] * half, [-1] * half, [1e300] * half]:
            config(f"longrope {key} {str(value)[:9]}", {**CONFIG, "rope_scaling": {
                "rope_type": "longrope", "short_factor": [1] * half, "long_factor": [2] * half,
                "original_max_position_embeddings": 64, key: value}}, key)
    config("dynamic without a factor", {**CONFIG, "rope_scaling": {"rope_type": "dynamic"}}, "factor")
    for value in ["xpos", "", 7, [], "x" * 100000, "a\nb"]:
        config(f"rope type {str(value)[:9]!r}", {**CONFIG, "rope_scaling": {"rope_type": value}},
               "rope_type")
    config("rope nested", {**CONFIG, "rope_parameters": {"full_attention": {"rope_theta": 1}}},
           "rope_parameters")


def broken_text():
    text = json.dumps(CONFIG)
    for n in range(0, len(text), 23):
        config(f"cut at {n}", text[:n], "line")
    config("zero bytes", b"")
    config("NUL bytes", bytes(1000))
    config("not UTF-8", b'{"architectures": ["\xff\xfe"]}')
    config("deep", "[" * 100000)
    config("deep objects", '{"a":' * 100000)
    config("deep and closed", '{"a":' + "[" * 100000 + "]" * 100000 + "}")
    config("duplicate", text[:-1] + ', "hidden_size": 1}', "hidden_size")
    config("long number", text.replace('"hidden_size": ', '"hidden_size": ' + "9" * 5000))
    config("big exponent", text.replace('"rms_norm_eps": ', '"rms_norm_eps": 1e9999, "x": '))
    for literal, word in {"NaN": "hidden_size", "Infinity": "hidden_size", "-Infinity": "hidden_size",
                          "nan": "line", "0x10": "line", "+1": "line", ".5": "line",
                          "1.": "line"}.items():
        config("literal " + literal, text.replace('"hidden_size": ', '"hidden_size": %s, "x": '
                                                  % literal), word)
    config("array", "[]")
    config("string", '"Qwen3ForCausalLM"')
    config("long", '{"x": "' + "x" * (40 << 20) + '"}')
    config("unknown architecture", {**CONFIG, "architectures": ["ShoeForCausalLM"]}, "architectures",
           "ShoeForCausalLM")
    config("long architecture", {**CONFIG, "architectures": ["A" * 100000]}, "architectures")
    config("control characters", {**CONFIG, "architectures": ["a\n\x1b[2Jquern: ok\r\0b"]},
           "architectures")
    config("no architectures", {**CONFIG, "architectures": [], "model_type": "shoe"}, "model_type")
    config("quantized", {**CONFIG, "quantization_config": {"quant_method": "gptq"}}, "gptq")


def generation():
    for key, values in {"temperature": ["x", -1, 1e300, []], "top_p": ["x", -1, 0, 2, {}],
                        "min_p": ["x", -1, 2], "top_k": ["x", 1.5, -2, 2**62], "do_sample": [1, "x"],
                        "repetition_penalty": ["x", 0, -1, 1e300],
                        "eos_token_id": ["x", [1.5], {"a": 1}]}.items():
        for value in values:
            d = h.folder(QWEN3)
            (d / "generation_config.json").write_text(json.dumps({key: value}))
            h.run(f"generation {key} {value}", generate(d), ("generation_config.json", key))
    for name, raw in [("empty", b""), ("list", b"[]"), ("deep", b"[" * 100000), ("bad", b"\xff")]:
        d = h.folder(QWEN3)
        (d / "generation_config.json").write_bytes(raw)
        h.run("generation " + name, generate(d), ("generation_config.json",))


def weights(name, change, *words, codes=(1,), culprit="model.safetensors"):
    """A case whose model.safetensors `change(path, header, data)` has written; the error names the culprit."""
    d = h.folder(QWEN3, link=())
    header, data = read_safetensors(QWEN3 / "model.safetensors")
    path = d / "model.safetensors"
    path.unlink()
    change(path, header, data)
    h.run("weights " + name, generate(d), (culprit, *words), codes)


def safetensors():
    raw = (QWEN3 / "model.safetensors").read_bytes()
    for n in [*range(0, 17), 100, 1000, len(raw) // 2, len(raw) - 4096, len(raw) - 1]:
        weights(f"cut at {n}", lambda p, _, __, n=n: p.write_bytes(raw[:n]))
    for length in [0, 1, 7, len(raw), 10 * 10**9, 100 * 10**6 + 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]:
        weights(f"header length {length}",
                lambda p, hd, da, n=length: write_safetensors(p, hd, da, n))
    weights("header deep", lambda p, _, da: write_safetensors(p, b"[" * 100000, da))
    weights("header deep in a tensor", lambda p, _, da: write_safetensors(
        p, b'{"a":' * 100000, da))
    weights("header a list", lambda p, _, da: write_safetensors(p, b"[]", da), "header")
    weights("header not UTF-8", lambda p, _, da: write_safetensors(p, b'{"\xff": 1}', da))
    weights("no tensors", lambda p, _, da: write_safetensors(p, {}, da), "tensor")
    # A sparse file: 10 GB that are not there.
    def sparse(p, _, __):
        with open(p, "wb") as f:
            f.write((10 * 10**9).to_bytes(8, "little"))
            f.truncate(10 * 10**9 + 8)
    weights("sparse 10 GB header", sparse)  # refused by its length, or by the limit on memory

    header, _ = read_safetensors(QWEN3 / "model.safetensors")
    names = [n for n in header if n != "__metadata__"]
    first, last = names[0], names[-1]
    size = max(header[n]["data_offsets"][1] for n in names)
    for name, at, value in [
            ("dtype", "dtype", "F128"), ("dtype number", "dtype", 3), ("dtype null", "dtype", None),
            ("dtype long", "dtype", "B" * 100000), ("dtype int", "dtype", "I16"),
            ("shape text", "shape", "big"), ("shape negative", "shape", [-1, 4]),
            ("shape half", "shape", [1.5]), ("shape huge", "shape", [2**62, 2**62]),
            ("shape wraps", "shape", [2**32, 2**32]), ("shape wraps to nothing", "shape", [2**62, 4]),
            ("shape zero", "shape", [0, 0]), ("shape none", "shape", []),
            ("shape deep", "shape", [1] * 9), ("shape many", "shape", [1] * 100000),
            ("offsets text", "data_offsets", "x"), ("offsets one", "data_offsets", [0]),
            ("offsets three", "data_offsets", [0, 1, 2]), ("offsets back", "data_offsets", [10, 0]),
            ("offsets negative", "data_offsets", [-10, 10]),
            ("offsets far", "data_offsets", [2**62, 2**62 + 10]),
            ("offsets max", "data_offsets", [0, 2**63 - 1]),
            ("offsets real", "data_offsets", [0.0, 1.5]), ("offsets null", "data_offsets", None),
            ("offsets past the end", "data_offsets", [size, size + 16])]:
        for tensor in (first, last):
            weights(f"{name} of {tensor}", lambda p, hd, da, a=at, v=value, t=tensor:
                    write_safetensors(p, changed(hd, [t, a], v), da), tensor)
    for tensor in names:
        weights("missing " + tensor, lambda p, hd, da, t=tensor:
                write_safetensors(p, changed(hd, [t], removed), da), tensor)
        shape = header[tensor]["shape"]
        weights("transposed " + tensor, lambda p, hd, da, t=tensor, s=shape: write_safetensors(
            p, changed(hd, [t, "shape"], [s[0] * 2, *s[1:-1], s[-1] // 2] if len(s) > 1
                       else [1, s[0]]), da), tensor)
    weights("tensor is text", lambda p, hd, da: write_safetensors(p, {**hd, first: "x"}, da), first)
    weights("control characters", lambda p, hd, da: write_safetensors(
        p, {**hd, "a\n\x1b[31mb": {}}, da))
    weights("name with NUL", lambda p, hd, da: write_safetensors(p, {**hd, "a\0b": {}}, da))
    weights("duplicate", lambda p, hd, da: write_safetensors(
        p, json.dumps(hd)[:-1].encode() + b', "%s": {}}' % first.encode(), da), first)
    weights("many tensors", lambda p, hd, da: write_safetensors(
        p, {**hd, **{str(i): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
                     for i in range(200000)}}, da), codes=(0,))
    # Overlapping tensors and odd alignment are the format's business, not a danger.
    weights("overlap", lambda p, hd, da: write_safetensors(
        p, changed(hd, [last], header[[n for n in names if header[n]["shape"] ==
                                       header[last]["shape"]][0]]), da), codes=(0,))
    weights("odd alignment", lambda p, hd, da: write_safetensors(
        p, json.dumps(hd).encode() + b" " * (1 + len(json.dumps(hd)) % 2), da), codes=(0,))
    nan = b"\xff" * size
    weights("NaN everywhere", lambda p, hd, _: write_safetensors(p, hd, nan), culprit="the logits")
    infinite = b"\x80\x7f" * (size // 2)
    weights("infinity everywhere", lambda p, hd, _: write_safetensors(p, hd, infinite), culprit="the logits")


def index(name, value, *words, codes=(1,), change=None):
    d = h.folder(SHARDED, link=())
    (d / "model.safetensors.index.json").write_bytes(
        value if isinstance(value, bytes) else json.dumps(value).encode())
    if change:
        change(d)
    h.run("index " + name, generate(d), words, codes)


def indices():
    good = json.loads((SHARDED / "model.safetensors.index.json").read_text())
    tensor = next(iter(good["weight_map"]))
    file = "model.safetensors.index.json"
    for target in ["../model.safetensors", "/etc/passwd", "..", ".", "", "sub/x.safetensors",
                   "../../../../../../etc/passwd", "a\0b", 7, None, [], {}]:
        index(f"target {target!r}", changed(good, ["weight_map", tensor], target), file,
              "weight_map")
    index("itself", changed(good, ["weight_map", tensor], file), file)
    index("everything is itself", {"weight_map": {k: file for k in good["weight_map"]}}, file)
    for stale in [changed(good, ["weight_map", tensor], "nowhere.safetensors"),
                  changed(good, ["weight_map", tensor], "model-00003-of-00003.safetensors"),
                  changed(good, ["weight_map", "no.such"], good["weight_map"][tensor]),
                  changed(good, ["weight_map", tensor], removed)]:
        index("stale", stale, codes=(0,))
    index("nowhere", {"weight_map": {k: "nowhere.safetensors" for k in good["weight_map"]}},
          "nowhere.safetensors")
    index("empty", {}, file, "weight_map")
    index("empty map", {"weight_map": {}}, file, "weight_map")
    index("a list", {"weight_map": []}, file, "weight_map")
    index("deep", b"[" * 100000, file)
    index("cut", json.dumps(good).encode()[:100], file)
    index("many files", {"weight_map": {str(i): f"f{i}" for i in range(5000)}}, file)
    index("shard missing", good, "model-00002-of-00003.safetensors",
          change=lambda d: (d / "model-00002-of-00003.safetensors").unlink())
    index("shard empty", good, "model-00002-of-00003.safetensors",
          change=lambda d: (d / "model-00002-of-00003.safetensors").write_bytes(b""))
    index("shard a folder", good, "model-00002-of-00003.safetensors",
          change=lambda d: ((d / "model-00002-of-00003.safetensors").unlink(),
                            (d / "model-00002-of-00003.safetensors").mkdir()))
    index("shard twice", good, "is missing", change=lambda d: (
        d / "model-00002-of-00003.safetensors").write_bytes(
            (d / "model-00001-of-00003.safetensors").read_bytes()))


def folders():
    for file in ["config.json", "model.safetensors"]:
        def without(name, make, *words, file=file, codes=(1,)):
            d = h.folder(QWEN3, link=())
            (d / file).unlink()
            make(d / file)
            h.run(f"{file} {name}", generate(d), (*words,), codes)
        stem = "model.safetensors" if file[0] == "m" else file
        without("missing", lambda p: None, stem)
        without("a folder", lambda p: p.mkdir(), file)
        without("empty", lambda p: p.touch(), file)
        without("a loop", lambda p: p.symlink_to(p), stem)
        without("dangling", lambda p: p.symlink_to("nowhere"), stem)
        without("a pipe", lambda p: os.mkfifo(p), file)
        without("a device", lambda p: p.symlink_to("/dev/zero"), file)
        without("a random device", lambda p: p.symlink_to("/dev/urandom"), file)
        without("a link to itself by another name", lambda p: p.symlink_to("../" + p.parent.name +
                                                                           "/" + p.name), stem)
        without("a symlink", lambda p, f=file: p.symlink_to((QWEN3 / f).resolve()), codes=(0,))
    nothing = h.folder()
    h.run("an empty folder", generate(nothing), ("config.json",))
    h.run("no folder", generate(nothing / "none"), ("none",))
    h.run("a file", generate(QWEN3 / "config.json"), ("config.json",))
    h.run("a long path", generate("x" * 5000), ("",))
    h.run("a path of lines", generate("a\nb"), ("",))
    h.run("an empty path", generate(""), ("",), codes=(1, 2))


wrong_types()
lying_sizes()
rope()
broken_text()
generation()
safetensors()
indices()
folders()
h.end()
