#!/usr/bin/env bash
# The model that comes with the package: trained on the built-in text, by the default recipe.
# Some 20 minutes on two cores. The built-in text is Python's own documentation: with another Python, other numbers.
set -euo pipefail
cd "$(dirname "$0")/.."
hmrnn train text --data builtin --minutes 20 --out runs/builtin
hmrnn eval runs/builtin
hmrnn score runs/builtin
cp runs/builtin/best/{config.json,symbols.json,model.safetensors} src/hmrnn/shipped/builtin/
