#!/usr/bin/env bash
# Make the data set again from texts/: ./make.sh FOLDER [TEXT...]. FOLDER gets the full captures, of
# 77 MB each. A text takes three minutes on two idle cores. Needs Offstage with its extra `capture`, and the
# model: offstage models get smollm2-135m.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
full=$1
shift
mkdir -p "$full"
[[ $# -gt 0 ]] || set -- $(cd "$here/texts" && ls ./*.txt)
for name in "$@"; do
	name=$(basename "$name" .txt)
	offstage trace capture --model smollm2-135m --text "$here/texts/$name.txt" --mode teacher \
		--context-tokens 7680 --steps 128 --block-tokens 16 --dtype float32 --out "$full/$name.parquet"
	python3 "$here/reduce.py" "$full/$name.parquet" "$here/offstage_selections/data/$name.parquet"
done
