#!/usr/bin/env bash
# Penn Treebank with the paper's three layers of 512 units, on one core: the HM-LSTM by the recipe for 2 epochs, and the
# layer-norm LSTM of the same sizes for as many updates. DATA is where the set lies.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
for model in hm-lstm lstm; do
    hmrnn train text --preset ptb --hidden-sizes 512 512 512 \
        --weight-drop 0 --embedding-dropout 0 --dropout 0 --output-dropout 0 --weight-decay 0 --average 0 \
        --warmup 0 --no-random-start --epochs 2 --validate-every 0.5 --patience 4 --model $model \
        --data ptb --data-dir "${DATA:?where Penn Treebank lies}" --out "runs/ptb512-$model"
    hmrnn eval "runs/ptb512-$model"
done
hmrnn score runs/ptb512-hm-lstm --first 100000
