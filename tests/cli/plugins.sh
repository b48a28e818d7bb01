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
expect 1 inspect "$model" --plugin absent.rules; says absent.rules "no such file"
expect 2 inspect "$model" --plugin; says "wants an argument"
expect 1 rewrite "$model" -o theirs.rules --plugin theirs.rules; says "would overwrite"

expect 0 selftest --no-rules --plugin theirs.rules; prints theirs "gain 100 stated, 100 measured" "cpu, checked, sim" "0 failed"
expect 0 selftest --no-rules --plugin theirs.rules --json
python "r = report(); assert r['failed'] == 0 and r['reports'][0]['checks'] > 100 and r['reports'][0]['rules'] == 1"

# a wrong sign, a gain that is too small, a rule that loses its input, a case that does not fit
sed 's/inv_attr(alpha, 0.01)/times(2)/' theirs.rules >gain.rules
sed 's/rule theirs/rule wrong/; s/LeakyReluInverse<\*>(y)/LeakyRelu<*>(y)/' theirs.rules >wrong.rules
sed 's/rule theirs/rule never/; s/y = LeakyRelu(x)$/y = Celu(x)/; s/LeakyReluInverse/CeluInverse/' theirs.rules >never.rules
failing() { # PLUGIN WORD...
    local plugin=$1
    shift
    "$INVONNX" selftest --no-rules --plugin "$plugin" >out 2>err && wrong "selftest passes $plugin"
    says "checks failed"
    prints "$@"
}
failing gain.rules "rule theirs, case 1" "gain" "is magnified 10 times, the rule says at most 2"
failing wrong.rules "rule wrong, case 1" "round trip" "off by"
failing never.rules "rule never, case 1" "no node of the case fits it"
finish
