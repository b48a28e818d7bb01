# SPDX-License-Identifier: Apache-2.0
# Plugins on the command line: what `rules` prints is a plugin, every command takes --plugin, selftest says what fails.
. "$(dirname "$0")/common.bash"
model=$models/mlp_lrelu_seq_ts17/model.onnx
cd "$work" || exit 1

expect 0 rules; cp out all.rules
expect 0 rules --no-rules --plugin all.rules; prints "# of all.rules"
grep -v '^# of ' out >again.rules
cmp all.rules again.rules >err || wrong "rules that are read are not printed again"
expect 0 rules --no-rules; [ -s out ] && wrong "--no-rules leaves rules"
expect 1 rules --plugin all.rules; says all.rules "is already registered, by the library"
expect 0 rules --json
python "r = report()['rules']; assert len(r) > 40 and all(x['cases'] and x['text'] and not x['plugin'] for x in r)"

# the rule that solves is the plugin's
sed -n '/^rule leaky_relu$/,/^$/p' all.rules | sed 's/^rule .*/rule theirs/' >theirs.rules
for command in explain plan; do
    expect 0 $command "$model" --loss mse --memory invert --no-rules --plugin theirs.rules --json
    python "r = report(); assert [b['rule'] for b in r['blocks']] == ['theirs'] * len(r['blocks']) and r['blocks']"
done
expect 1 inspect "$model" --plugin absent.rules; says absent.rules "No such file"
expect 2 inspect "$model" --plugin; says "wants an argument"
expect 1 rewrite "$model" -o theirs.rules --plugin theirs.rules; says "would overwrite"

expect 0 selftest --plugin theirs.rules; prints theirs "gain 100 stated, 100 measured" "log |det| " "cpu, checked, sim" "0 failed"
expect 0 selftest --plugin theirs.rules --json
python "r = report(); assert r['failed'] == 0 and type(r['failed']) is int and r['reports'][0]['checks'] > 100 and r['reports'][0]['rules'] == 1
d = r['reports'][0]['results'][0]; assert abs(d['stated_logdet'] - d['measured_logdet']) < 1e-6 and d['stated_logdet'] != 0"
# the suite is about the plugin's rule also where a built-in one is tried before it, and costs less
sed 's/rule theirs/rule outdone/; s/priority .*/priority -9/; s/x = LeakyReluInverse<\*>(y)/a = Neg(y); b = Neg(a); x = LeakyReluInverse<*>(b)/' \
    theirs.rules >outdone.rules
expect 0 explain "$model" --loss mse --memory invert --plugin outdone.rules --json
python "r = report(); assert r['blocks'] and not [b for b in r['blocks'] if b['rule'] == 'outdone']"
expect 0 selftest --plugin outdone.rules; prints outdone "gain 100 stated, 100 measured" "0 failed"
sed -n '/^rule leaky_relu$/,/^$/p' all.rules | sed 's/^rule .*/rule refuses/; s/priority .*/priority -9/; s/solve .*/refuse no/; /gain/d' >refuses.rules
expect 0 selftest --plugin refuses.rules; prints refuses "0 failed"

# a pattern of several operators that refuses: no block, but the reason and what would help
cat >several.rules <<'RULE'
rule several
    match      h = MatMulT(x, param(W)); a = Add(h, param(b))
    refuse     this layer is not to be inverted
    remedy     take it out
    frees      x
    case       g(float[4,6] in) => (z) { param float[6,5] W; param float[5] b; x = LeakyRelu<alpha = 0.9>(in); h = MatMul(x, W); z = Add(h, b) }
RULE
expect 0 selftest --plugin several.rules; prints several "0 failed"
expect 0 explain "$model" --loss mse --memory invert --no-rules --plugin several.rules --json
python "r = report(); assert not r['blocks'] and r['refusals']
for f in r['refusals']: assert f['rule'] == 'several' and f['reason'] == 'this layer is not to be inverted' and f['remedy'] == 'take it out'"

# a wrong sign, a gain that is too small, a rule that loses its input, a case that does not fit
sed 's/inv_attr(alpha, 0.01)/times(2)/' theirs.rules >gain.rules
sed 's/rule theirs/rule wrong/; s/LeakyReluInverse<\*>(y)/LeakyRelu<*>(y)/' theirs.rules >wrong.rules
sed 's/rule theirs/rule never/; s/y = LeakyRelu(x)$/y = Celu(x)/; s/LeakyReluInverse/CeluInverse/' theirs.rules >never.rules
failing() { # PLUGIN WORD...
    local plugin=$1
    shift
    "$INVONNX" selftest --plugin "$plugin" >out 2>err && wrong "selftest passes $plugin"
    says "checks failed"
    prints "$@"
}
# a wrong log-determinant, one of more than a mask tells, one that no case can show
sed 's/logdet     log_deriv/logdet     0/; s/rule theirs/rule flat/' theirs.rules >flat.rules
sed -n '/^rule masked_affine_coupling$/,/^$/p' all.rules | sed 's/^rule .*/rule whole/; s/log_abs(s, c)/log_abs(s)/' >whole.rules
sed -n '/^rule masked_half$/,/^$/p' all.rules | sed 's/^rule masked_half$/rule half/' >>whole.rules
sed -n '/^rule linear_tall$/,/^$/p' all.rules | sed 's/^rule .*/rule tall/; s/^    doc/    logdet     log_det(W)\n&/' >tall.rules
# statements in any order, the one that meets nothing of the first among them; more of them and of names than anybody needs
cat >order.rules <<'RULE'
rule order
    kind       ""
    match      a = Mul(x1, param(c)); b = Mul(x2, param(s)); y1 = Sub(a, b)
    solve      x1 = Div(q, c); q = Add(y1, b)
    frees      x1
    when       same_shape(x1, y1); same_shape(x1, x2); away_from_zero(c, 1e-6)
    gain       max_inv(c)
    doc        two scaled streams
    case       g(float[4,3] u, float[4,3] v) => (z) { param float[6,5] B; param float[3] c = {0.5, 2, 1}; param float[3] s = {0.8, 0.6, 0};
             | x1 = LeakyRelu<alpha = 0.9>(u); x2 = LeakyRelu<alpha = 0.9>(v); a = Mul(x1, c); b = Mul(x2, s); y1 = Sub(a, b); y = Concat<axis = 1>(y1, x2); z = MatMul(y, B) }
RULE
"$INVONNX_PYTHON" - <<'MAKE'
ways = range(1, 18)
match = [f"a{i} = Add(a{i - 1}, param(shift))" for i in ways] + ["a0 = Mul(x, param(the_factor_of_a_name_that_is_longer_than_most))"]
solve = ["x = Div(b0, the_factor_of_a_name_that_is_longer_than_most)"] + [f"b{i - 1} = Sub(b{i}, shift)" for i in ways][:-1]
case = " ".join(f"a{i} = Add(a{i - 1}, shift);" for i in ways)
open("many.rules", "w").write(f"""rule many
    kind       ""
    match      {'; '.join(match[::2] + match[1::2])}
    solve      {'; '.join(solve)}; b16 = Sub(a17, shift)
    frees      x
    when       same_shape(x, a17); away_from_zero(the_factor_of_a_name_that_is_longer_than_most, 1e-6)
    gain       max_inv(the_factor_of_a_name_that_is_longer_than_most)
    doc        a scale and many shifts
    case       g(float[4,6] in) => (z) {{ param float[6,5] B; param float[6] f = {{1.5, -2, 0.25, 1, 3, -0.5}};
             | param float[6] shift; x = LeakyRelu<alpha = 0.9>(in); a0 = Mul(x, f); {case} z = MatMul(a17, B) }}
""")
MAKE
for rules in order many; do expect 0 selftest --plugin $rules.rules; prints "rule     $rules" "0 failed"; done
cat >cut.rules <<'RULE'
rule cut
    kind       ""
    match      x1, x2 = SplitSizes(x); t = region(x2); y1 = Add(x1, t)
    solve      r = Sub(y1, t); x = Concat<axis = x1.axis>(r, x2)
    frees      x
    when       same_shape(x1, y1)
    logdet     0
    doc        of y1 and x2, both results of the pattern
    case       g(float[4,6] in) => (z) { param float[6,5] B; x = LeakyRelu<alpha = 0.9>(in); x1, x2 = Split<axis = 1, num_outputs = 2>(x); t = Tanh(x2); y1 = Add(x1, t); y = Concat<axis = 1>(y1, x2); z = MatMul(y, B) }
RULE
expect 0 selftest --plugin cut.rules; prints "rule     cut" "log |det| 0 stated" "0 failed"
# numbers in solve: of both forms, a fraction in all digits of float64, how many elements there are
cat >numbers.rules <<'RULE'
rule haar
    kind       ""
    match      low = Add(x1, x2); high = Sub(x1, x2)
    solve      x1 = Mul(u, float[] {0.5}); u = Add(low, high)
    frees      x1
    when       same_shape(x1, low); same_shape(x2, low)
    doc        sum and difference
    case       g(float[4,3] u, float[4,3] v) => (z) { param float[6,5] B; x1 = LeakyRelu<alpha = 0.9>(u); x2 = LeakyRelu<alpha = 0.9>(v);
             | low = Add(x1, x2); high = Sub(x1, x2); y = Concat<axis = 1>(low, high); z = MatMul(y, B) }
rule cube
    kind       ""
    match      y = Pow(x, param(three))
    solve      a = Abs(y); s = Sign(y); r = Pow(a, 1/3); x = Mul(s, r)
    frees      x
    when       number(three) == 3
    gain       unbounded
    doc        x cubed
    case       g(float[4,6] in) => (z) { param float[6,5] B; x = LeakyRelu<alpha = 0.9>(in); y = Pow(x, float[] {3}); z = MatMul(y, B) }
rule thrice
    kind       ""
    match      y = Mul(x, param(three))
    solve      x = Mul(float[] {0.333333333333333333}, y)
    frees      x
    when       number(three) == 3
    doc        three times x
    case       g(float[4,6] in) => (z) { param float[6,5] B; x = LeakyRelu<alpha = 0.9>(in); y = Mul(x, float[] {3}); z = MatMul(y, B) }
rule summed
    kind       ""
    match      s = ReduceSumAxes(x); y = Add(x, s)
    solve      t = ReduceSumAxes<axes = s.axes, keepdims = s.keepdims>(y); n = Add(count(y, -1), 1); m = Div(t, n); x = Sub(y, m)
    frees      x
    when       same_shape(x, y); attr(s.axes) == 1
    doc        each entry with the sum of its row
    case       g(float[4,6] in) => (z) { const int64[1] a = {1}; param float[6,5] B; x = LeakyRelu<alpha = 0.9>(in); s = ReduceSum<keepdims = 1>(x, a); y = Add(x, s); z = MatMul(y, B) }
RULE
expect 0 selftest --plugin numbers.rules; prints "rule     haar" "rule     cube" "rule     thrice" "rule     summed" "0 failed"
failing flat.rules "rule flat, case 1" "log-determinant" "of sample " " it is -" "by differences, the rule says 0"
failing whole.rules "rule whole, case 1" "log-determinant" "of sample " "log |det|"
failing tall.rules "rule tall, case 2" "log-determinant" "no case measures it"
sed -n '/^rule mul_bounded$/,/^$/p' all.rules | sed 's/^rule .*/rule near/; s/kind       ""/kind       near/; s/Exp(t)/Sin(t)/' >near.rules
failing near.rules "rule near, case 1" "'s', given by Sin, may come as near to zero as 0"
failing gain.rules "rule theirs, case 1" "gain" "is magnified 10 times, the rule says at most 2"
failing wrong.rules "rule wrong, case 1" "round trip" "off by"
failing never.rules "rule never, case 1" "no node of the case fits it: the first statement that does not fit is 'y = Celu(x)'"
# what is simplified before rules are tried is shown as it is then; a condition that fails is named
cat >spelled.rules <<'RULE'
rule spelled
    match      q = Mul(x, x); y = Mul(q, x)
    solve      x = Pow(y, 1/3)
    frees      x
    gain       unbounded
    case       g(float[4,6] in) => (z) { param float[6,5] B; x = LeakyRelu<alpha = 0.9>(in); q = Mul(x, x); y = Mul(q, x); z = MatMul(y, B) }
RULE
failing spelled.rules "the first statement that does not fit is 'q = Mul(x, x)'" "lowered and simplified to" "Pow(x, "
cat >unfit.rules <<'RULE'
rule unfit
    match      a = Sin(x); y = Add(a, param(b))
    solve      q = Sub(y, b); x = Sin(q)
    frees      x
    when       same_shape(b, x)
    case       g(float[4,6] in) => (z) { param float[6,5] B; param float[6] b; x = LeakyRelu<alpha = 0.9>(in); a = Sin(x); y = Add(a, b); z = MatMul(y, B) }
RULE
failing unfit.rules "all its statements do, but" "so same_shape(b, x) does not hold"
finish
