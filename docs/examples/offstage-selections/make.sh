#!/usr/bin/env bash
# Make the data set again from texts/: ./make.sh FOLDER [TEXT...]. FOLDER gets the full captures, of
# 77 MB each. A text takes three minutes on two idle cores, one called *-32k eight, and the one called
# *-128k half an hour. With STEPS=256 it takes the texts of 8K alone, gives them 256 steps behind a
# context that is shorter by as many tokens, and reduces none: they are for figures.py.
# Needs Offstage with its extra `capture`, and the model: offstage models get smollm2-135m.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
full=$1
steps=${STEPS:-128}
shift
mkdir -p "$full"
[[ $# -gt 0 ]] || set -- $(cd "$here/texts" && ls ./*.txt)
for name in "$@"; do
	name=$(basename "$name" .txt)
	[[ $steps == 128 || $name != *-*k ]] || continue
	length=(--context-tokens $((7808 - steps)) --block-tokens 16 --dtype float32)
	[[ $name != *-32k ]] || length=(--context-tokens 32640 --block-tokens 64 --rope yarn:4 --dtype float32)
	[[ $name != *-128k ]] || length=(--context-tokens 130560 --block-tokens 256 --rope yarn:16 --dtype bfloat16 --windows 8)
	offstage trace capture --model smollm2-135m --text "$here/texts/$name.txt" --mode teacher \
		"${length[@]}" --steps "$steps" --out "$full/$name.parquet"
	((steps == 128)) || continue
	reduced=("$name")
	[[ $name != judge-code ]] || reduced+=("$name-heads")
	for one in "${reduced[@]}"; do
		python3 "$here/reduce.py" "$full/$name.parquet" "$here/offstage_selections/data/$one.parquet"
	done
done
