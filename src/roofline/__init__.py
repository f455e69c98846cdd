"""How fast, how large and how dear an LLM is to serve on given hardware, and why.

>>> import roofline as rl
>>> e = rl.estimate("llama-3.1-70b", "h100-sxm", engine="ideal", batch=1)
>>> round(e.tokens_per_s_user.value), e.fits
(24, False)
"""

from importlib import import_module

__version__ = "0.1.0"

# public name -> module; imported when first asked for, so that `import roofline` costs next to nothing
_PUBLIC = {
    "estimate": "estimates",
    "Estimate": "estimates",
    "sweep": "sweeps",
    "Sweep": "sweeps",
    "plan": "planner",
    "traffic": "planner",
    "Slo": "planner",
    "Recommendation": "planner",
    "levers": "techniques",
    "compare": "comparison",
    "simulate": "simulation",
    "deployed": "simulation",
    "speculate": "speculative",
    "plot": "report",
    "write_report": "report",
    "Deployment": "deployment",
    "deploy": "deployment",
    "decode_regime": "regimes",
    "hardware": "specs.library",
    "load_model": "specs.refs",
    "measure_decode_utilization": "measure",
    "Plan": "parallel",
    "Precision": "precision",
    "RooflineError": "errors",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str):
    if name in _PUBLIC:
        value = getattr(import_module(f"roofline.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'roofline' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
