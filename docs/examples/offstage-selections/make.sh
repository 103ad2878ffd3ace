#!/usr/bin/env bash
# Make the data set again from texts/: ./make.sh FOLDER [TEXT...]. FOLDER gets the full captures, of
# 77 MB each. A text takes three minutes on two idle cores, one called *-32k eight, and the one called
# *-128k more than an hour.
# Needs Offstage with its extra `capture`, and the model: offstage models get smollm2-135m.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
full=$1
shift
mkdir -p "$full"
[[ $# -gt 0 ]] || set -- $(cd "$here/texts" && ls ./*.txt)
for name in "$@"; do
	name=$(basename "$name" .txt)
	length=(--context-tokens 7680 --block-tokens 16)
	[[ $name != *-32k ]] || length=(--context-tokens 32640 --block-tokens 64 --rope yarn:4)
	[[ $name != *-128k ]] || length=(--context-tokens 130560 --block-tokens 256 --rope yarn:16 --windows 8)
	offstage trace capture --model smollm2-135m --text "$here/texts/$name.txt" --mode teacher \
		"${length[@]}" --steps 128 --dtype float32 --out "$full/$name.parquet"
	python3 "$here/reduce.py" "$full/$name.parquet" "$here/offstage_selections/data/$name.parquet"
done
