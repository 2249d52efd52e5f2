#!/usr/bin/env bash
# The same training in float32 and in bfloat16, on one core: Penn Treebank, 3 x 512, two epochs; IAM-OnDB, 3 x 400, one
# epoch. DATA is where the sets lie. Not run as a whole yet.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
for precision in float32 bfloat16; do
    text=runs/precision-ptb-$precision strokes=runs/precision-iam-$precision
    hmrnn train text --preset ptb --hidden-sizes 512 512 512 \
        --weight-drop 0 --embedding-dropout 0 --dropout 0 --output-dropout 0 --weight-decay 0 --average 0 \
        --warmup 0 --no-random-start --epochs 2 --validate-every 0.5 --patience 4 \
        --precision $precision --data ptb --data-dir "${DATA:?where ptb and iam_ondb lie}/ptb" --out $text
    hmrnn eval $text
    hmrnn score $text --first 100000
    hmrnn train strokes --data iam-ondb --data-dir "$DATA/iam_ondb" --learning-rate 0.0003 --warmup 0 --average 0 --dropout 0 --output-dropout 0 \
        --scaling 0 --smallest-sigma 0.0024787521766663585 --epochs 1 --precision $precision --out $strokes
    hmrnn eval $strokes
done
