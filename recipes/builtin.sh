#!/usr/bin/env bash
# The model that comes with the package: three layers of 128 units, trained on the built-in text. Some 2 minutes on one
# core. The built-in text is Python's own documentation (here that of 3.11): with another Python, other numbers.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 # the last bits depend on the number of threads
hmrnn train text --data builtin --epochs 8 --out runs/builtin
hmrnn eval runs/builtin  # 1.552 bits per character
hmrnn score runs/builtin # layer 1: F1 .77 against the first letters of words (convention "after"), .14 at random
mkdir -p src/hmrnn/storage/shipped/builtin
cp runs/builtin/best/{config.json,symbols.json,model.safetensors} src/hmrnn/storage/shipped/builtin/
