# op.sh - operators from text: check, and prove with its three exit codes.
. tests/cli/common.bash

cat >"$T/mlp.op" <<'OP'
# a gated MLP behind a norm
op mlp(x[t,h] act, g[h] vec, wg[i,h] weight, wu[i,h] weight, eps const, a const=1.702) -> y[t,i]
  n = x * g * rsqrt(mean(h: x*x) + eps)
  y = sum(h: n*wg) * sigmoid(a * sum(h: n*wg)) * sum(h: n*wu)
OP
cat >"$T/folded.op" <<'OP'
op folded(x[t,h] act, g[h] vec, wg[i,h] weight, wu[i,h] weight, eps const, a const=1.702) -> y[t,i]
  r = 1 / sqrt(sum(h: square(x)) / size(h) + eps)
  v = r * sum(h: x*g*wg)
  y = v * r * sum(h: x*g*wu) / (1 + exp(-a*v))
OP
sed 's/n\*wu/n*wg/' "$T/mlp.op" >"$T/gate.op"
sed 's/ + eps)/)/' "$T/mlp.op" >"$T/eps.op"
sed 's/sigmoid(/exp(/' "$T/mlp.op" >"$T/exp.op"
sed 's/eps const, //' "$T/eps.op" >"$T/less.op"
printf 'op f(x act, y act) -> z\n z = abs(x*y)\n' >"$T/abs.op"
printf 'op f(x act, y act) -> z\n z = abs(x)*abs(y)\n' >"$T/abs2.op"
printf 'op f(x[t] act) -> y[t]\n  y = x + 1 +\n  z = x\n' >"$T/bad.op"

run 0 op check "$T/mlp.op"
out_says "op mlp: 6 arguments"
out_says "  dims t h i"
out_says "in  wg[i,h] weight"
out_says "out y[t,i]"
out_says "in  a const, has a value"
out_says "  y = "
refused 1 "bad.op:3:3: want an argument" op check "$T/bad.op"
refused 1 "nofile" op check "$T/nofile"
refused 2 "which operator" op check
refused 2 "op check" op

run 0 op prove "$T/mlp.op" "$T/folded.op"
[ "$(cat "$T/out")" = "equal: proved" ] || die "equal: $(cat "$T/out")"
grep -q "rounded to float32: errors up to .* within 2 times" "$T/err" || die "roundings"
for wrong in gate eps exp; do
    run 1 op prove "$T/mlp.op" "$T/$wrong.op"
    grep -q '^different: y\[t=.*\] is .* and .* where .*x = ' "$T/out" || die "$wrong: $(cat "$T/out")"
done
code=0
"$Q" op prove "$T/abs.op" "$T/abs2.op" >"$T/out" 2>"$T/err" || code=$?
[ $code -eq 3 ] || die "not decided: exit code $code"
grep -q '^not decided: z' "$T/out" || die "not decided: $(cat "$T/out")"
refused 1 "has the argument 'eps'" op prove "$T/mlp.op" "$T/less.op"
refused 2 "which two operators" op prove "$T/mlp.op"
run 0 completion bash
bash -c '. "$1"; COMP_WORDS=(quern op pr); COMP_CWORD=2; _quern; printf "%s\n" "${COMPREPLY[@]}"' _ "$T/out" | grep -qx prove || die "completion"
exit 0
