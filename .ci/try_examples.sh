#!/usr/bin/env bash
# Do the packages of docs/examples work beside an installed Offstage? Run where they are installed, with
# their environment's bin on the path: a daemon on the example's storage, the example's connector against
# it, a lab run with the example's policy, and the data set.
set -euo pipefail

WORK=$(mktemp -d "${TMPDIR:-/tmp}/offstage-examples.XXXXXX")
cd "$WORK"
finish() {
	code=$?
	for pid in $(jobs -p); do kill "$pid" || true; done
	wait
	[[ $code == 0 ]] || cat "$WORK"/*.log
	rm -rf "$WORK"
	exit $code
}
trap finish EXIT

export OFFSTAGE_DAEMON_ENDPOINT="ipc://$WORK/control" OFFSTAGE_DAEMON_METRICS_ENDPOINT=""
offstage dpu serve --set storage.backend=mapped --set "storage.path=$WORK/blocks.ofs" \
	--set storage.size=256MiB --set arena.size=64MiB \
	>ready.json 2>daemon.log &
until [[ -s ready.json ]]; do
	kill -0 %1
	sleep 0.1
done
prefix-connector --endpoint "$OFFSTAGE_DAEMON_ENDPOINT" --chunk-bytes 65536 | tee connector.log
grep -q "equal: True" connector.log
grep -q "shares the first half: 1,024 tokens" connector.log
kill %1
wait %1

offstage lab policies | grep rising
cat >rising.toml <<'END'
[workload]
context_tokens = 8192
steps = 16
[geometry]
model = "demo"
[selection]
k_blocks = 16
[[policy]]
use = "rising"
END
offstage lab run rising.toml --out rising >lab.log 2>&1
test -s rising/summary.json
python -c 'import offstage_selections as set; assert all(set.scores(text).any() for text in set.FILES)'
echo "examples: storage, connector, policy and data set work beside the wheel"
