# completion.sh - completion scripts and the manual page.
. tests/cli/common.bash

run 0 completion bash
bash -n "$T/out" || die "bash does not parse it"
complete_line() { # words... -> what is offered for the last one
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _quern; printf "%s\n" "${COMPREPLY[@]}"' _ "$T/out" "$@"
}
complete_line quern gen | grep -qx generate || die "commands"
complete_line quern ben | grep -qx bench || die "two-word commands"
complete_line quern bench lat | grep -qx latency || die "second words"
complete_line quern generate --max-t | grep -qx -- --max-tokens || die "options"
complete_line quern tokenize --max-t | grep -q . && die "options of another command"
complete_line quern chat --backend c | sort | tr '\n' ' ' | grep -q "cpu cuda" || die "choices"
complete_line quern completion f | grep -qx fish || die "positional choices"
for shell in zsh fish; do
    run 0 completion $shell
    out_says "max-tokens"
    if command -v $shell >/dev/null; then $shell -n "$T/out" || die "$shell does not parse it"; fi
done
run 0 man
out_says ".TH QUERN 1"
if command -v man >/dev/null && man -l "$T/out" >"$T/page" 2>"$T/err"; then
    grep -q -- "--prompts-file" "$T/page" || die "the manual page lacks an option"
    [ ! -s "$T/err" ] || die "man complains"
fi
for option in $("$Q" generate --help | grep -o '^ *\(-., \)\?--[a-z-]*' | grep -o -- '--[a-z-]*'); do
    grep -q -- "$(sed 's/-/\\\\-/g' <<<"$option")" "$T/out" || die "no $option in the manual page"
done
exit 0
