#!/usr/bin/env bash
# On a machine with a GPU: the sampler's tests, then what its kernels cost, as one table. See gpu_tests.sh.
set -uo pipefail
cd "$(dirname "$0")/.."
if compgen -G ".whl/*.whl" >/dev/null; then
    site=$(mktemp -d)
    python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" .whl/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
python3 -m pytest -q -x --tb=short -p no:cacheprovider tests/gpu/test_chain.py tests/gpu/test_sampling.py 2>&1 | tail -60
python3 -m benchmarks.sampler
