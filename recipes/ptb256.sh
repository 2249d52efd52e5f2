#!/usr/bin/env bash
# Penn Treebank with three layers of 256 units: the HM-LSTM by the recipe, and the layer-norm LSTM of the same sizes. 50
# minutes each, one after the other, on one core. DATA is where the set lies.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
for model in lstm hm-lstm; do
    hmrnn train text --preset small --data ptb --data-dir "${DATA:?where Penn Treebank lies}" --model $model \
        --hidden-sizes 256 256 256 --output-size 256 --validate-every 0.5 --patience 4 --epochs 30 --minutes 50 \
        --out runs/ptb256-$model # validates each half epoch: 784 updates
    hmrnn eval runs/ptb256-$model
done
hmrnn score runs/ptb256-hm-lstm --first 100000
