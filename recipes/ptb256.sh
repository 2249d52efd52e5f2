#!/usr/bin/env bash
# Penn Treebank with three layers of 256 units, on one core: the HM-LSTM by the recipe for 4 epochs (27 minutes), the
# layer-norm LSTM of the same sizes for as many updates (56 minutes), and for as many minutes. DATA is where the set lies.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
run() {
    name=$1
    shift
    hmrnn train text --preset small --data ptb --data-dir "${DATA:?where Penn Treebank lies}" --hidden-sizes 256 256 256 \
        --output-size 256 --validate-every 0.5 --epochs 4 --out "runs/ptb256-$name" "$@"
    hmrnn eval "runs/ptb256-$name"
}
run hm-lstm
run lstm --model lstm
run lstm-same-minutes --model lstm --minutes 27.2
hmrnn score runs/ptb256-hm-lstm --first 100000
