#!/usr/bin/env bash
# Runs tests/gpu on a machine that has a GPU and its own torch, but perhaps neither pytest nor a network.
# Beside the checkout it may find .whl/ (wheels of pytest and its plugins) and .carried/data (check vectors).
set -euo pipefail
cd "$(dirname "$0")/.."
if compgen -G ".whl/*.whl" >/dev/null; then
    site=$(mktemp -d)
    python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" .whl/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
python3 -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__,
      torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")'
# What looks at all of the card's memory, or at its speed, has it to itself.
python3 -m pytest tests/gpu -p no:cacheprovider -m "not whole_card" "$@"
python3 -m pytest tests/gpu -p no:cacheprovider -m whole_card "$@" -n 0
