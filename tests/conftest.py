import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from support.small_runs import UPDATES

from hmrnn.domains.text.data.corpora import builtin_text
from hmrnn.storage.cache import cache_directory

# Torch's own bfloat16 products end in an illegal instruction on some virtual machines: there it must do without AMX.
PROBE = "import torch; a = torch.ones(512, 512, dtype=torch.bfloat16); a @ a"
CPUINFO = Path("/proc/cpuinfo")
if CPUINFO.exists() and "amx_bf16" in CPUINFO.read_text() and "ONEDNN_MAX_CPU_ISA" not in os.environ:
    dies = subprocess.run([sys.executable, "-c", PROBE], check=False, capture_output=True).returncode != 0
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16" if dies else "DEFAULT"

# Triton decides when it is first imported, by whomever, whether its kernels are for a GPU or for its interpreter.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

# A shell that runs tests in the background has them ignore Ctrl-C, and so would all that they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run of CI, so that a red run can be repeated; a fresh search when one asks for it.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", parent=settings.get_profile("repeatable"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True, scope="session")
def _own_cache():
    """Texts are cached in a folder that goes when the tests end; the built engine stays where it is."""
    native = cache_directory("native")
    native.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / "native").symlink_to(native)
        patch.setenv("HMRNN_CACHE", folder)
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The paper's sets, which belong to others: where they are not at hand, what needs them is skipped."""
    folder = Path(os.environ.get("HMRNN_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not all((folder / name).is_dir() for name in ("ptb", "text8", "enwik8", "iam_ondb")):
        pytest.skip(f"the published sets are not in {folder} (HMRNN_DATA)")
    return folder


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> Path:
    """A text of `small_runs.UPDATES` updates an epoch."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(builtin_text()[: UPDATES * 4 * 10 * 20 // 18 + 40])
    return path
