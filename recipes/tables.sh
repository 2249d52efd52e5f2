#!/usr/bin/env bash
# The long runs of docs/results.md, next to the paper's tables: `recipes/tables.sh NAME` trains one on one core, or on
# OMP_NUM_THREADS cores, or goes on with it. DATA holds the folders ptb, text8, enwik8 and iam_ondb; RUNS is where runs
# go. Afterwards:
#     python benchmarks/results.py finish RUNS/NAME NAME --command "recipes/tables.sh NAME"
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
: "${DATA:?where the data sets lie}" "${RUNS:=runs}"
name=${1:?the name of a run}

case $name in
    ptb-hm)     flags=(text --preset ptb --data ptb --hidden-sizes 512 512 512 --minutes 148) ;;
    ptb-lstm)   # as many updates as ptb-hm
                flags=(text --preset ptb --data ptb --hidden-sizes 512 512 512 --model lstm --epochs 19.5386) ;;
    ptb-best)   flags=(text --preset ptb --data ptb --minutes 102.5) ;;
    ptb-paper)  flags=(text --preset paper-ptb --data ptb) ;;
    text8-hm)   flags=(text --preset text8 --data text8) ;;
    text8-lstm) flags=(text --preset text8 --data text8 --model lstm) ;;
    enwik8-hm)  flags=(text --preset enwik8 --data enwik8) ;;
    iam-hm)     flags=(strokes --preset iam-ondb --data iam-ondb --minutes 138) ;;
    iam-lstm)   flags=(strokes --preset iam-ondb --data iam-ondb --model lstm --epochs 25) ;;
    *) echo "no run of the tables is called $name" >&2; exit 2 ;;
esac
if [[ -e $RUNS/$name ]]; then
    hmrnn train "${flags[0]}" --resume "$RUNS/$name"
else
    set_name=${name%-*}
    hmrnn train "${flags[@]}" --data-dir "$DATA/${set_name/iam/iam_ondb}" --out "$RUNS/$name"
fi
