#!/usr/bin/env bash
# Penn Treebank with three layers of 256 units, on one core: the HM-LSTM by the recipe for 2 and for 4 epochs (16 and 31
# minutes), and the layer-norm LSTM of the same sizes for as many updates (27 and 56). DATA is where the set lies.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
run() {
    name=$1
    shift
    hmrnn train text --preset small --data ptb --data-dir "${DATA:?where Penn Treebank lies}" --hidden-sizes 256 256 256 \
        --output-size 256 --validate-every 0.5 --out "runs/ptb256-$name" "$@"
    hmrnn eval "runs/ptb256-$name"
}
for epochs in 2.0345 4; do # the LSTM's first run was one of 27.2 minutes, which were 2.0345 epochs
    run "hm-lstm-$epochs" --epochs $epochs
    run "lstm-$epochs" --epochs $epochs --model lstm
done
hmrnn score runs/ptb256-hm-lstm-4 --first 100000
