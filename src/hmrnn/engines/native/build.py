from __future__ import annotations
from functools import cache
from pathlib import Path
from types import ModuleType
@cache
def extension() -> ModuleType:
    from torch.utils import cpp_extension
    here = Path(__file__).parent
    return cpp_extension.load("hmrnn_native", [str(here / n) for n in ("forward.cpp","backward.cpp","module.cpp")],
      extra_cflags=["-O3","-march=native","-fopenmp","-fno-math-errno","-fno-trapping-math","-std=c++20"], extra_ldflags=["-fopenmp"], verbose=True)
