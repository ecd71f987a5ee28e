# directories.sh - model directories as people have them, from the command line.
. tests/cli/common.bash

# copy MODEL: $T/m is a copy of it that may be changed.
copy() { rm -rf "$T/m" && cp -rL "$1" "$T/m" && chmod -R u+w "$T/m"; }

# change FILE 'python statements over o (its object)'
change() {
    python3 - "$T/m/$1" "$2" <<'PY' || die "change $1"
import json, sys
o = json.load(open(sys.argv[1], encoding="utf-8"))
exec(sys.argv[2])
json.dump(o, open(sys.argv[1], "w", encoding="utf-8"))
PY
}

ask() { run 0 generate "$T/m" --prompt-file "$T/prompt" --no-special-tokens --temperature 0 --max-tokens 40 --format json -q; }

# Numbers that only Python writes, where nothing needs them.
printf '<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n' >"$T/prompt"
copy $TINY
ask
cp "$T/out" "$T/plain"
check 'o[0]["finish_reason"] == "stop" and o[0]["ids"][-1] == 2559'
for file in config.json generation_config.json tokenizer_config.json tokenizer.json; do
    change $file 'o.update({"model_max_length": 10**30, "x": [float("nan"), -10**400, float("inf")]})'
done
ask
check "o[0]['ids'] == $(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["ids"])' "$T/plain")"
change config.json 'o["num_hidden_layers"] = 10**30'
refused 1 "m/config.json: num_hidden_layers: want an integer from 1 to 512, have 1e+30" generate "$T/m" --prompt x -q

# The end of a turn that only the tokenizer names.
copy $TINY
change config.json 'o["eos_token_id"] = 2557'
change generation_config.json 'o["eos_token_id"] = [2557, 99999, -1]'
ask
check 'o[0]["finish_reason"] == "stop" and o[0]["ids"][-1] == 2559'
change tokenizer_config.json 'o["eos_token"] = "<|endoftext|>"'
ask
check '2559 in o[0]["ids"][:-1]'
change tokenizer_config.json 'o.pop("eos_token"); o.pop("added_tokens_decoder")'
echo '{"eos_token": {"content": "<|im_end|>", "lstrip": false}}' >"$T/m/special_tokens_map.json"
ask
check 'o[0]["finish_reason"] == "stop" and o[0]["ids"][-1] == 2559'

# A checkpoint that was saved from a model without its head: names lack "model.".
python3 - "$T/m/model.safetensors" <<'P'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = {k.removeprefix("model."): v for k, v in json.loads(data[8:8 + n]).items()}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
P
cp "$T/out" "$T/plain"
ask
check "o[0]['ids'] == $(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["ids"])' "$T/plain")"

# An index with names that nobody needs.
copy $GOLDEN/mistral-window
run 0 generate "$T/m" --prompt-ids 1,2,3 --max-tokens 4 --temperature 0 --format json -q
cp "$T/out" "$T/plain"
change model.safetensors.index.json 'o["weight_map"].update({"mtp.fc.weight": "model-00002-of-00003.safetensors", "x": "gone.safetensors"})'
run 0 generate "$T/m" --prompt-ids 1,2,3 --max-tokens 4 --temperature 0 --format json -q
check "o[0]['ids'] == $(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["ids"])' "$T/plain")"

# What is no model directory says what it is.
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >"$T/m/model-00001-of-00003.safetensors"
refused 1 "model-00001-of-00003.safetensors: a Git LFS pointer" generate "$T/m" --prompt-ids 1 -q
refused 1 "hf download Qwen/Qwen3-0.6B" generate Qwen/Qwen3-0.6B --prompt-ids 1 -q
refused 1 "hf download Qwen/Qwen3-0.6B" tokenize --tokenizer Qwen/Qwen3-0.6B --prompt x
rm "$T"/m/*.safetensors* && touch "$T/m/pytorch_model.bin"
refused 1 "pickled weights, which quern never reads" generate "$T/m" --prompt-ids 1 -q
touch "$T/m/vocab.json" "$T/m/merges.txt"
refused 1 "want tokenizer.json, have vocab.json and merges.txt; make tokenizer.json" tokenize --tokenizer "$T/m" --prompt x
rm "$T/m/config.json" && touch "$T/m/model-Q4.gguf"
refused 1 "no config.json; a GGUF model" generate "$T/m" --prompt-ids 1 -q
exit 0
